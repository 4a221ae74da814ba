"""The settings of the spine: names, types, defaults, bounds and help texts. Edges add groups of theirs."""

from typing import TYPE_CHECKING

from minigpt.config.gpt_config import PRESETS, GPTConfig, preset_config
from minigpt.config.reading_settings import ReadingSettings
from minigpt.config.sampling_settings import SamplingSettings
from minigpt.config.train_settings import TrainSettings, scored_text_of

if TYPE_CHECKING:
    from minigpt.config.combined import ReadingConfig, SamplingConfig, TrainConfig

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
    if name in ("ReadingConfig", "SamplingConfig", "TrainConfig"):
        from minigpt.config import combined

        return getattr(combined, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
