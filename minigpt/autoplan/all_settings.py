"""The settings that a plan chooses, with those of the edges that it plans for."""

from typing import TYPE_CHECKING, cast

from minigpt.config import TrainConfig

if TYPE_CHECKING:
    from minigpt.distillation.settings import DistillationSettings
    from minigpt.distributed.settings import DistributedSettings
    from minigpt.lora.settings import LoraSettings
    from minigpt.tricks.settings import TrickSettings

    class AllSettings(DistributedSettings, DistillationSettings, LoraSettings, TrickSettings):
        """The settings of these edges, which `TrainConfig` has."""


def all_settings(config: TrainConfig) -> "AllSettings":
    """The same settings, with those of the edges."""
    return cast("AllSettings", config)
