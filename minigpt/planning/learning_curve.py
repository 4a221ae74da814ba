"""Reads from a run's evaluations whether it was still improving when it ended."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

_FEWEST = 5  # evaluations that show a trend
_QUARTER = 0.75  # the trend is that of the last quarter of the steps
_IMPROVING, _WORSE = 0.005, 0.01  # the least change, as a fraction of the bits per byte


@dataclass(frozen=True)
class Trend:
    """The course of the validation loss towards the end of a run.

    `before` and `now` are bits per byte: of the best evaluation and the last one if it was `rising`, else at three
    quarters of the steps and at the end. `since` is the step of `before`.
    """

    direction: Literal["falling", "flat", "rising"]
    since: int
    before: float
    now: float


def trend(evaluations: Sequence[tuple[int, float]]) -> Trend | None:
    """The trend of evaluations (step, bits per byte) in order; None for fewer than five."""
    if len(evaluations) < _FEWEST:
        return None
    last_step, now = evaluations[-1]
    best_step, best = min(evaluations, key=lambda evaluation: evaluation[1])
    if now > best * (1 + _WORSE):
        return Trend("rising", best_step, best, now)
    since, before = min(evaluations[:-1], key=lambda evaluation: abs(evaluation[0] - _QUARTER * last_step))
    return Trend("falling" if now < before * (1 - _IMPROVING) else "flat", since, before, now)
