"""The settings of the loggers, which are options of `minigpt train`."""

from dataclasses import dataclass

from minigpt.errors import ConfigError
from minigpt.optional_packages import check_installed
from minigpt.runs.sink_settings import SinkSettings
from minigpt.settings import setting

LOGGERS = ("tensorboard", "wandb")


@dataclass(frozen=True, kw_only=True)
class LoggerSettings(SinkSettings):
    """The settings of the loggers.

    Raises: ConfigError for an unknown logger, MissingPackageError for one whose package is not installed.
    """

    log: tuple[str, ...] = setting((), f"also log to {' or '.join(LOGGERS)}; repeatable", choices=LOGGERS)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.log:
            if name not in LOGGERS:
                raise ConfigError(f"log ({name!r}) must be one of {', '.join(LOGGERS)}")
            check_installed(f"--log {name}", name)
