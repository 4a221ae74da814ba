"""The name, type, default, bounds and help text of every setting."""

from minigpt.config.gpt_config import PRESETS, GPTConfig, preset_config
from minigpt.config.reading_config import ReadingConfig
from minigpt.config.sampling_config import SamplingConfig, parse_logit_bias
from minigpt.config.train_config import TrainConfig, scored_text_of

__all__ = [
    "PRESETS",
    "GPTConfig",
    "ReadingConfig",
    "SamplingConfig",
    "TrainConfig",
    "parse_logit_bias",
    "preset_config",
    "scored_text_of",
]
