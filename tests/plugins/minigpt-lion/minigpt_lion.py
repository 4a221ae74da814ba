"""A training trick: `minigpt train --lion` updates all weights with Lion instead of Muon and AdamW."""

from dataclasses import dataclass

from minigpt.config import TrainSettings
from minigpt.edges import Edge
from minigpt.settings import setting

EDGE = Edge(
    name="lion",
    sentence="The optimizer Lion.",
    package="minigpt_lion",
    provides={
        "train_settings": "minigpt_lion:LionSettings",
        "step_parts": "minigpt_lion_optimizer:use_lion",
    },
)


@dataclass(frozen=True, kw_only=True)
class LionSettings(TrainSettings):
    """The settings of Lion."""

    lion: bool | None = setting(None, "update all weights with Lion", group="Optimization")
