"""The events of a run, of which `train()` yields all but activities: small frozen records to draw, collect or plot."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

EndReason = Literal["length", "early stop", "diverged"]


@dataclass(frozen=True)
class Activity:
    """A slow part of the preparation begins, and the previous one has ended. With an empty text, none begins.

    `in_bytes` says that the progress callback is called with the bytes done and their total.
    """

    text: str
    in_bytes: bool = False


@dataclass(frozen=True)
class Step:
    """The result of an optimizer step. `skipped` says that its gradient was not applied.

    `progress` is the part of the run that is done, from 0 to 1. Units: `loss` nats per token of the step's batch, NaN
    if none is scored; `seconds` of the run so far, including evaluations and the time before a resume; `seconds_left`
    to its end.
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

    @property
    def is_scored(self) -> bool:
        """Whether a token of the batch was scored; a loss that is NaN for another reason is that of a skipped step."""
        return self.skipped or not math.isnan(self.loss)


@dataclass(frozen=True)
class Evaluation:
    """The validation loss after `step` steps. Unit: nats per token.

    `tokens` are those trained on so far, `seconds` those of the run. `best` says that it gave the best weights.
    """

    step: int
    validation_loss: float
    bits_per_byte: float
    tokens: int
    seconds: float
    best: bool


@dataclass(frozen=True)
class Sample:
    """A text generated after `step` steps, from the same prompt and seed each time: the most likely of `best_of` texts.

    `measured` has what edges have measured on it, by name; `sample.memorization` is `sample.measured["memorization"]`.
    """

    step: int
    prompt: str
    text: str
    measured: Mapping[str, Any] = field(default_factory=dict)
    best_of: int = 1

    def __getattr__(self, name: str) -> Any:
        if name != "measured" and name in self.measured:
            return self.measured[name]
        raise AttributeError(f"a sample has no {name!r}")


@dataclass(frozen=True)
class Saved:
    """A save: `best` are the weights of the run's model, `last` is the state to resume from."""

    step: int
    path: Path
    what: Literal["best", "last"]


@dataclass(frozen=True)
class Notice:
    """A message for the user, such as that a step was skipped."""

    step: int
    text: str


@dataclass(frozen=True)
class Finished:
    """The end of a run, with the figures of its best weights, or of the last weights if `train()` has no run.

    `best_step` is the step of these weights. They are measured on `validation_tokens`: all of the validation text, or
    what a budget in minutes has time for. They are None without a validation text.
    """

    step: int
    reason: EndReason
    best_step: int
    validation_loss: float | None
    bits_per_byte: float | None
    validation_tokens: int
    seconds: float

    def _repr_html_(self) -> str:
        return "<pre>" + "\n".join(f"{name:20}{value}" for name, value in vars(self).items()) + "</pre>"


Event = Step | Evaluation | Sample | Saved | Notice | Finished
