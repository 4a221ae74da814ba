"""The events of a training job in addition to those of training: its current activity, its plan, and its run."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from minigpt.training import events

if TYPE_CHECKING:
    from minigpt.evaluation.baselines import Baseline
    from minigpt.jobs.plan import Plan


@dataclass(frozen=True)
class Activity:
    """A slow part of the preparation begins, and the previous one has ended. With an empty text, none begins.

    `in_bytes` says that the progress callback is called with the bytes done and their total.
    """

    text: str
    in_bytes: bool = False


@dataclass(frozen=True)
class Planned:
    """The plan of a new run."""

    plan: "Plan"


@dataclass(frozen=True)
class Started:
    """The run is ready to train: its folder exists and is locked.

    `step` is that of its last saved state, 0 for a new run; `total_steps` is None if the budget is in minutes.
    """

    directory: Path
    step: int
    device: str
    total_steps: int | None
    tokens_per_step: int
    baselines: "tuple[Baseline, ...]"


Event = events.Event | Activity | Planned | Started
