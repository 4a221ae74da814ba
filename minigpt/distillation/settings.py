"""The settings of learning from a teacher."""

from dataclasses import dataclass
from functools import partial
from typing import Literal

from minigpt.config.train_settings import TrainSettings
from minigpt.errors import ConfigError
from minigpt.settings import setting

_optimization = partial(setting, group="Optimization")


@dataclass(frozen=True, kw_only=True)
class DistillationSettings(TrainSettings):
    """The settings of learning from a teacher."""

    distill: Literal["auto", "on", "off"] = _optimization(
        "auto",
        "train a teacher first, then a model that learns from it and from the text; auto: with "
        "--minutes, for a text that is read many times",
        on_resume="never",
    )
    distill_weight: float = _optimization(0.5, "weight of the teacher's predictions in the loss", above=0, max=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        lora, freeze = getattr(self, "lora", None), getattr(self, "freeze", 0)
        for name, value in (("lora", lora and "on"), ("freeze", freeze)):
            if self.distill == "on" and value:
                raise ConfigError(f"distill (on) cannot be combined with {name} ({value}); omit one of them")

    @property
    def unsharded_for(self) -> str:
        """The setting for which the weights are never sharded; a teacher is whole on every process."""
        return super().unsharded_for or ("distill (on)" if self.distill == "on" else "")
