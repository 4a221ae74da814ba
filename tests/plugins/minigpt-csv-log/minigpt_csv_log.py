"""An event sink: `minigpt train --csv losses.csv` writes a row for each evaluation."""

from dataclasses import dataclass

from minigpt.edges import Edge
from minigpt.runs.sink_settings import SinkSettings
from minigpt.settings import setting

EDGE = Edge(
    name="csv_log",
    sentence="Losses as a CSV file.",
    package="minigpt_csv_log",
    provides={
        "sink_settings": "minigpt_csv_log:CsvSettings",
        "sinks": "minigpt_csv_log_sink:csv_sink",
    },
)


@dataclass(frozen=True, kw_only=True)
class CsvSettings(SinkSettings):
    """The settings of the CSV file."""

    csv: str | None = setting(None, "write the losses of the evaluations into this file", group="Logging")
