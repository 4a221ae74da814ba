"""What came of steps, as events; and when too many of them went wrong. It takes no step and writes nothing."""

import math
import time

from minigpt.training.budget import Budget
from minigpt.training.events import Event, Notice, Step
from minigpt.training.state import Progress
from minigpt.training.step import Outcome

_BAD_IN_A_ROW = 5  # steps left out one after the other that make a divergence


class DivergedError(Exception):
    """Training has left the numbers; the message says how it was seen."""


class Reporter:
    """Makes events of outcomes and counts those left out; `restart` says that the next step begins only now."""

    def __init__(self, pace: Budget, tokens_per_step: int) -> None:
        self.pace, self.tokens_per_step = pace, tokens_per_step
        self.restart()

    def restart(self) -> None:
        """Leaves out of the next step's time what has passed since the last one."""
        self._began = time.perf_counter()

    def events_of(self, outcome: Outcome, progress: Progress) -> list[Event]:
        """The step that an outcome is of and, where it was left out, a line on that."""
        now = time.perf_counter()
        step = Step(
            step=outcome.step,
            seconds=progress.seconds,
            seconds_left=self.pace.seconds_left(progress),
            progress=self.pace.share_done(progress),
            loss=outcome.loss,
            learning_rate=outcome.rate,
            gradient_norm=outcome.norm,
            tokens=progress.tokens - (progress.step - outcome.step) * self.tokens_per_step,  # it may be behind
            tokens_per_second=self.tokens_per_step / (now - self._began),
            left_out=outcome.left_out,
        )
        self._began = now
        if not outcome.left_out:
            progress.left_out_running = 0
            return [step]
        progress.left_out += 1
        progress.left_out_running += not _overflows(outcome)
        return [step, Notice(outcome.step, _left_out(outcome, progress.left_out))]

    @staticmethod
    def check(outcome: Outcome, progress: Progress) -> None:
        """Raises DivergedError where too many steps in a row were left out, this one the last, or the loss scale has
        come to nothing: it is halved for every gradient that overflows, which may take many steps and is no harm."""
        if outcome.scale is not None and outcome.scale < 1:
            raise DivergedError(f"float16 gradients overflow whatever their scale, now {outcome.scale:g}")
        if progress.left_out_running >= _BAD_IN_A_ROW:
            raise DivergedError(
                f"the loss is {outcome.loss:.4g} and the gradient's norm {outcome.norm:.4g}, {_BAD_IN_A_ROW} steps "
                f"in a row were left out, at rate {outcome.rate:.3g}"
            )


def _overflows(outcome: Outcome) -> bool:
    """Whether a gradient is too large for its loss scale only."""
    return outcome.scale is not None and math.isfinite(outcome.loss) and not math.isfinite(outcome.norm)


def _left_out(outcome: Outcome, count: int) -> str:
    if math.isfinite(outcome.loss) and math.isfinite(outcome.norm):
        why = f"loss {outcome.loss:.4g} is far above the recent ones"
    else:
        why = f"loss {outcome.loss:.4g} or its gradient's norm {outcome.norm:.4g} is not finite"
    return f"step {outcome.step:,}: its {why}, so it was left out ({count} so far)"
