"""A training job that is ready to run, and the stages that an edge trains before the model itself."""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minigpt.config import TrainConfig
from minigpt.data.corpus import Corpus
from minigpt.edges import provided
from minigpt.model.gpt import GPT
from minigpt.runs.events import TrainingEvent
from minigpt.runs.plan import Plan
from minigpt.storage.run import Run
from minigpt.training.clock import Control
from minigpt.training.world import World


@dataclass(frozen=True, kw_only=True)
class Share:
    """What a process needs to train a job together with others. Only the main one has a `run`, which is locked.

    `elapsed` is how much of a budget in minutes is used, in seconds. `options` are given to `train()` as well.
    """

    model: GPT
    corpus: Corpus
    config: TrainConfig
    resume: bool
    run: Run | None = None
    elapsed: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Job(Share):
    """A job as the main process has it. A new run has the `plan` that it begins with; a resumed one has none.

    A resumed run may be on another machine, so that its plan would not be true.
    """

    run: Run
    plan: Plan | None = None

    @property
    def tokens_per_step(self) -> int:
        """Tokens in the batch of one optimizer step."""
        return self.config.sequences_per_step * (self.config.context_length or self.model.config.n_positions)


Events = Generator[TrainingEvent, None, None]
Train = Callable[[Share, Control, World], Events]
"""Trains the model of a job, and yields the events."""


@dataclass(frozen=True)
class StageState:
    """How far a stage of a stopped run has come.

    `place` is where the run continues, as in "resuming fox {place}", and `saved` what is saved of the stage, empty if
    it has ended. `seconds` are those that it took, if it has ended, and `folder` has its files.
    """

    place: str
    saved: str
    seconds: float
    folder: Path


class Stage:
    """Training around that of the model, such as that of a teacher before it. An edge provides one at "stages"."""

    def train(self, train: Train, job: Share, control: Control, world: World) -> Events:
        """Trains a job by calling `train`, which trains its model, and perhaps that of another job before."""
        return train(job, control, world)

    def state(self, run: Run) -> StageState | None:  # noqa: ARG002
        """How far it has come in the run; None if it has not begun or the run has no such stage."""
        return None


def stages() -> tuple[Stage, ...]:
    """The stages of the installed edges."""
    return tuple(build() for build in provided("stages"))


def stage_state(run: Run) -> StageState | None:
    """The state of the stage that has come furthest in a run, if there is one."""
    return next((state for stage in stages() if (state := stage.state(run)) is not None), None)
