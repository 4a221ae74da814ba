"""The settings of the report of a run, which are options of `minigpt train`."""

from dataclasses import dataclass

from minigpt.errors import ConfigError
from minigpt.reports import REPORT
from minigpt.runs.sink_settings import SinkSettings
from minigpt.settings import setting


@dataclass(frozen=True, kw_only=True)
class ReportSettings(SinkSettings):
    """The settings of the report of a run."""

    no_report: bool = setting(False, f"do not write {REPORT} into the run's folder")
    watch: bool = setting(False, f"open {REPORT} in a browser; it reloads itself while the run trains", common=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.watch and self.no_report:
            raise ConfigError(f"--watch shows {REPORT}, so it cannot be combined with --no-report; omit one of them")
