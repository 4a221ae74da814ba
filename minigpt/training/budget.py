"""How far a run is and what is due, from its settings and its progress alone; it holds no clock and does nothing."""

import math
from dataclasses import dataclass, replace

from minigpt.config import TrainConfig
from minigpt.data.batches import windows_per_epoch
from minigpt.errors import ConfigError
from minigpt.training.progress import Progress

_EVALUATIONS, _SAMPLES = 20, 5  # in a run, where the settings do not say


def planned_steps(config: TrainConfig, n_tokens: int) -> int | None:
    """The run's length in optimizer steps over `n_tokens` of training text; None where the clock decides.

    Raises: ConfigError where no length is given.
    """
    if config.minutes is not None:
        return None
    if config.steps is not None:
        return config.steps
    if config.epochs is None or config.context_length is None:
        raise ConfigError("a run needs a length: give one of steps, epochs and minutes")
    sequences = config.epochs * windows_per_epoch(n_tokens, config.context_length)
    return max(1, round(sequences / config.sequences_per_step))


@dataclass(frozen=True)
class Budget:
    """What is due when: parts of a run are counted in steps where its length is known in steps, else by the clock."""

    config: TrainConfig
    total_steps: int | None

    def progress_fraction(self, progress: Progress) -> float:
        """How much of the run is done, from 0 to 1; by the clock it ends early, for what comes after."""
        cut = progress.cut or 1.0
        if self.total_steps is not None:
            return min(1.0, progress.step / (cut * self.total_steps))
        whole = self._training_seconds(progress) - progress.began_at
        return min(1.0, (progress.seconds - progress.began_at) / (cut * whole)) if whole > 0 else 1.0

    def seconds_left(self, progress: Progress) -> float:
        """How long the run still takes: by the clock, or as its steps have taken so far; infinite before the first."""
        gone, share = progress.seconds - progress.began_at, self.progress_fraction(progress)
        if self.total_steps is not None:
            return gone * (1 / share - 1) if share else math.inf
        whole = (progress.cut or 1.0) * (self._training_seconds(progress) - progress.began_at)
        return max(0.0, whole - gone) + progress.closing_seconds

    def _training_seconds(self, progress: Progress) -> float:
        assert self.config.minutes is not None
        budget = 60 * self.config.minutes
        return max(budget - progress.closing_seconds, 0.5 * budget)

    @property
    def cooling_from(self) -> float:
        """The share of the run from which the rate only falls, so that going on from later is no use; 1 for never."""
        return 1 - self.config.cooldown if self.config.schedule == "trapezoid" else 1.0

    def is_over(self, progress: Progress) -> bool:
        """Whether the budget is spent."""
        return self.progress_fraction(progress) >= 1

    def is_stale(self, progress: Progress) -> bool:
        """Whether as many evaluations in a row as the patience allows have brought no improvement."""
        return 0 < (self.config.patience or 0) <= progress.stale_evaluations

    def cooled_too_early(self, began: Progress, now: Progress) -> bool:
        """Whether the cool-down that began at one point of the run and has come to another should not have begun there:
        the budget is longer by now, or what cut it short is no longer wanted."""
        given_up = now.cut is not None and not self.config.patience
        return given_up or self.progress_fraction(replace(began, cut=now.cut)) < self.cooling_from * (1 - 1e-6)

    def evaluation_is_due(self, progress: Progress) -> bool:
        """Whether to evaluate now; by the clock, training first gets thirty times what one takes."""
        if self.is_over(progress):
            return True
        every = self.config.eval_every
        if every is None and self.total_steps is None:
            since = progress.seconds - progress.evaluated_at
            if since < 30 * progress.evaluation_seconds:
                return False
        return self._is_due(progress, every, _EVALUATIONS, progress.evaluated_step, progress.evaluated_at)

    def sample_is_due(self, progress: Progress) -> bool:
        """Whether to draw a sample now."""
        every = self.config.sample_every
        return every != 0 and self._is_due(progress, every, _SAMPLES, progress.sampled_step, progress.sampled_at)

    def _is_due(self, progress: Progress, every: int | None, parts: int, last_step: int, last_seconds: float) -> bool:
        """Whether what is done every so many steps, else in each of so many parts of the run, is to be done again."""
        if every is None and self.total_steps is not None:
            every = math.ceil(self.total_steps / parts)
        if every is not None:
            return progress.step // every > last_step // every
        part = self._training_seconds(progress) / parts  # seconds
        return math.floor(progress.seconds / part) > math.floor(last_seconds / part)
