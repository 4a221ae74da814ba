"""The settings of the spine: names, types, defaults, bounds and help texts. Edges add groups of theirs."""

from typing import TYPE_CHECKING

from minigpt.config.gpt_config import PRESETS, GPTConfig, preset_config
from minigpt.config.reading_settings import ReadingSettings
from minigpt.config.sampling_settings import SamplingSettings
from minigpt.config.train_settings import TrainSettings, scored_text_of

if TYPE_CHECKING:
    from minigpt.config.reading_config import ReadingConfig
    from minigpt.config.sampling_config import SamplingConfig
    from minigpt.config.train_config import TrainConfig

__all__ = [
    "PRESETS",
    "GPTConfig",
    "ReadingConfig",
    "ReadingSettings",
    "SamplingConfig",
    "SamplingSettings",
    "TrainConfig",
    "TrainSettings",
    "preset_config",
    "scored_text_of",
]


def __getattr__(name: str) -> object:
    # Made when they are first used, since the settings of the edges, which they combine, import this package.
    if name == "ReadingConfig":
        from minigpt.config import reading_config

        return reading_config.ReadingConfig
    if name == "SamplingConfig":
        from minigpt.config import sampling_config

        return sampling_config.SamplingConfig
    if name == "TrainConfig":
        from minigpt.config import train_config

        return train_config.TrainConfig
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
