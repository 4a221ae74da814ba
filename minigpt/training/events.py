"""What `train()` yields: small frozen records that the terminal draws, a test collects and a notebook plots."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from minigpt.evaluation.memorization.index import Memorization, TrainingLocation


@dataclass(frozen=True)
class Step:
    """One optimizer step done. `skipped` says that its gradient was dropped.

    Units: loss nats per token of this step's batch; `seconds` of the run so far, measuring and what came before a
    resume included; `seconds_left` until its end.
    """

    step: int
    progress: float
    loss: float
    learning_rate: float
    gradient_norm: float
    tokens: int
    seconds: float
    seconds_left: float
    tokens_per_second: float
    skipped: bool = False


@dataclass(frozen=True)
class Evaluation:
    """The validation loss after `step` steps. Units: validation_loss nats per token."""

    step: int
    validation_loss: float
    bits_per_byte: float
    tokens: int
    seconds: float
    best: bool


@dataclass(frozen=True)
class Sample:
    """What the model writes after `step` steps, always from the same prompt and seed, and how much of it is copied.

    `memorization` is None before the first step and on all processes but the main one. `location` is where the longest
    copied run occurs first in the training text; None unless that run is a long one.
    """

    step: int
    prompt: str
    text: str
    memorization: Memorization | None = None
    location: TrainingLocation | None = None


@dataclass(frozen=True)
class Saved:
    """Weights or state written: `best` is the run's model, `last` what resuming needs."""

    step: int
    path: Path
    what: Literal["best", "last"]


@dataclass(frozen=True)
class Notice:
    """Something the user should know that is no figure: a fallback taken, say."""

    step: int
    text: str


@dataclass(frozen=True)
class Finished:
    """The end. The figures are the best weights' over `validation_tokens` of the validation part, all of it but where a
    budget in minutes is too short for that; None where there is none."""

    step: int
    reason: Literal["length", "early stop"]
    best_step: int
    validation_loss: float | None
    bits_per_byte: float | None
    validation_tokens: int
    seconds: float


Event = Step | Evaluation | Sample | Saved | Notice | Finished
