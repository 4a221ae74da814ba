"""What came of steps, as events; and when too many of them went wrong. It takes no step and writes nothing."""

import math
import time

from minigpt.training.budget import Budget
from minigpt.training.events import Event, Notice, Step
from minigpt.training.progress import Progress
from minigpt.training.step import StepResult

_BAD_IN_A_ROW = 5  # steps left out one after the other that make a divergence


class DivergedError(Exception):
    """Training has left the numbers; the message says how it was seen."""


class Reporter:
    """Makes events of results and counts those left out; `restart` says that the next step begins only now."""

    def __init__(self, budget: Budget, tokens_per_step: int) -> None:
        self.budget, self.tokens_per_step = budget, tokens_per_step
        self.restart()

    def restart(self) -> None:
        """Leaves out of the next step's time what has passed since the last one."""
        self._began = time.perf_counter()

    def events_of(self, result: StepResult, progress: Progress) -> list[Event]:
        """The step that an result is of and, where it was left out, a line on that."""
        now = time.perf_counter()
        step = Step(
            step=result.step,
            seconds=progress.seconds,
            seconds_left=self.budget.seconds_left(progress),
            progress=self.budget.progress_fraction(progress),
            loss=result.loss,
            learning_rate=result.rate,
            gradient_norm=result.norm,
            tokens=progress.tokens - (progress.step - result.step) * self.tokens_per_step,  # it may be behind
            tokens_per_second=self.tokens_per_step / (now - self._began),
            skipped=result.skipped,
        )
        self._began = now
        if not result.skipped:
            progress.consecutive_skips = 0
            return [step]
        progress.skipped += 1
        progress.consecutive_skips += not _overflows(result)
        return [step, Notice(result.step, _left_out(result, progress.skipped))]

    @staticmethod
    def check(result: StepResult, progress: Progress) -> None:
        """Raises DivergedError where too many steps in a row were left out, this one the last, or the loss scale has
        come to nothing: it is halved for every gradient that overflows, which may take many steps and is no harm."""
        if result.scale is not None and result.scale < 1:
            raise DivergedError(f"float16 gradients overflow whatever their scale, now {result.scale:g}")
        if progress.consecutive_skips >= _BAD_IN_A_ROW:
            raise DivergedError(
                f"the loss is {result.loss:.4g} and the gradient's norm {result.norm:.4g}, {_BAD_IN_A_ROW} steps "
                f"in a row were left out, at rate {result.rate:.3g}"
            )


def _overflows(result: StepResult) -> bool:
    """Whether a gradient is too large for its loss scale only."""
    return result.scale is not None and math.isfinite(result.loss) and not math.isfinite(result.norm)


def _left_out(result: StepResult, count: int) -> str:
    if math.isfinite(result.loss) and math.isfinite(result.norm):
        why = f"loss {result.loss:.4g} is far above the recent ones"
    else:
        why = f"loss {result.loss:.4g} or its gradient's norm {result.norm:.4g} is not finite"
    return f"step {result.step:,}: its {why}, so it was left out ({count} so far)"
