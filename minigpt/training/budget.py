"""The budget of a run: the part that is done, the schedules, and when to evaluate, sample, save, cool down and end."""

import math
from dataclasses import dataclass, replace

from minigpt.config import TrainConfig
from minigpt.data.batches import windows_per_epoch
from minigpt.errors import ConfigError
from minigpt.training.events import EndReason
from minigpt.training.progress import Progress

EVALUATIONS, SAMPLES = 20, 5  # per run, unless the settings say otherwise
_TRAINING, _LEAST_TRAINING = 30, 5  # between two evaluations, in durations of an evaluation
_FEWEST_PARTS = 8  # of a run: six evaluations also where one takes its time


def planned_steps(config: TrainConfig, n_tokens: int) -> int | None:
    """The number of optimizer steps on `n_tokens` of training text; None for a budget in minutes.

    Raises: ConfigError if no length is given.
    """
    if config.minutes is not None:
        return None
    if config.steps is not None:
        return config.steps
    if config.epochs is None or config.context_length is None:
        raise ConfigError("a run needs a length: give one of steps, epochs and minutes")
    sequences = config.epochs * windows_per_epoch(n_tokens, config.context_length)
    return max(1, round(sequences / config.sequences_per_step))


def training_between(evaluation: float, run: float) -> float:
    """How long training takes between two evaluations, each as long as `evaluation`, in a `run`, all in one unit.

    30 times as long as an evaluation; less in a short run, so that it has six, but at least five times as long.
    """
    return min(_TRAINING * evaluation, max(run / _FEWEST_PARTS, _LEAST_TRAINING * evaluation))


@dataclass(frozen=True)
class Budget:
    """The length of a run, in steps if their number is known and otherwise in minutes.

    Its methods only read the `Progress` that they are given.
    """

    config: TrainConfig
    total_steps: int | None

    # The fraction that is done.

    def progress_fraction(self, progress: Progress) -> float:
        """The fraction of the training that is done, 0 to 1. The closing time of a budget in minutes does not count."""
        used = progress.budget.shortened_to or 1.0
        if self.total_steps is not None:
            return min(1.0, self._steps_done(progress) / (used * self.total_steps))
        start = progress.budget.start_seconds
        total = self._training_seconds(progress) - start
        return min(1.0, (progress.seconds - start) / (used * total)) if total > 0 else 1.0

    def last_step(self, progress: Progress) -> int | None:
        """The number of the last step of a run with this progress; None for a budget in minutes."""
        if self.total_steps is None:
            return None
        return math.ceil(progress.step + self.total_steps - self._steps_done(progress))

    def _steps_done(self, progress: Progress) -> float:
        """The steps so far; in a budget of epochs, those with another batch or context count by their tokens."""
        config = self.config
        if config.epochs is None or config.context_length is None or not progress.tokens:
            return progress.step
        return progress.tokens / (config.sequences_per_step * config.context_length)

    def seconds_left(self, progress: Progress) -> float:
        """The rest of the budget in minutes, or an extrapolation of the steps so far; infinite before the first."""
        start = progress.budget.start_seconds
        elapsed, fraction = progress.seconds - start, self.progress_fraction(progress)
        if self.total_steps is not None:
            return elapsed * (1 / fraction - 1) if fraction else math.inf
        total = (progress.budget.shortened_to or 1.0) * (self._training_seconds(progress) - start)
        return max(0.0, total - elapsed) + progress.budget.closing_seconds

    def _training_seconds(self, progress: Progress) -> float:
        assert self.config.minutes is not None
        budget = 60 * self.config.minutes
        return max(budget - progress.budget.closing_seconds, 0.5 * budget)

    # The end.

    def is_spent(self, progress: Progress) -> bool:
        """Whether the run has used all of its budget."""
        return self.progress_fraction(progress) >= 1

    def has_stopped_improving(self, progress: Progress) -> bool:
        """Whether `patience` evaluations in a row have not lowered the validation loss."""
        return 0 < (self.config.patience or 0) <= progress.evaluation.without_improvement

    def end_reason(self, progress: Progress, *, spent: bool) -> EndReason | None:
        """The reason why the run ends here, given whether its budget is `spent`; None if it does not end."""
        if spent and progress.budget.shortened_to is None:
            return "length"
        return "early stop" if spent or self.has_stopped_improving(progress) else None

    # The cool-down.

    @property
    def cooldown_start(self) -> float:
        """The fraction of the run from which the learning rate falls to the end; 1 for a schedule without cool-down."""
        return 1 - self.config.cooldown if self.config.schedule == "trapezoid" else 1.0

    def cooldown_is_due(self, progress: Progress) -> bool:
        """Whether the cool-down starts here, as scheduled. A decay over the whole run has no state before it."""
        if progress.budget.cooldown_step is not None or self.cooldown_start in (0, 1) or self.is_spent(progress):
            return False
        return self.progress_fraction(progress) >= self.cooldown_start

    def early_cooldown(self, progress: Progress) -> float | None:
        """The fraction of its budget that the run will use if its cool-down starts here, before the scheduled time.

        None if it does not start here. It does when validation no longer improves: at a high learning rate the loss
        often stops improving while it still would at a lower one.
        """
        fraction = self.progress_fraction(progress)
        if progress.budget.cooldown_step is not None or self.cooldown_start == 1:
            return None
        if self.has_stopped_improving(progress) and 0 < fraction < self.cooldown_start:
            return fraction / self.cooldown_start
        return None

    def continues_from(self, last: Progress, before_cooldown: Progress | None) -> Progress:
        """Which of its two saved states a resumed run continues from.

        That is the one before its cool-down, if there is one and the last state has cooled down too early.
        """
        if before_cooldown is None or not last.cooled_down_from(before_cooldown):
            return last
        return before_cooldown if self._cooled_down_too_early(before_cooldown, last) else last

    def _cooled_down_too_early(self, before: Progress, now: Progress) -> bool:
        """Whether the cool-down that started at `before` and has reached `now` started too early.

        It did if the budget is longer now, or if the run should no longer stop early.
        """
        if now.budget.shortened_to is not None and not self.config.patience:
            return True
        before = replace(before, budget=replace(before.budget, shortened_to=now.budget.shortened_to))
        return self.progress_fraction(before) < self.cooldown_start * (1 - 1e-6)

    # Evaluations, samples and saves.

    def evaluation_is_due(self, progress: Progress) -> bool:
        """Whether to evaluate now, which it is if there is no evaluation of this text and these weights yet.

        With a budget in minutes, half of `training_between` is before the last one. A token takes a third of the time
        of training on it; a budget in steps counts that, not the clock.
        """
        every, last, config = self.config.eval_every, progress.evaluation, self.config
        if last.step < 0 or self.is_spent(progress):
            return True
        if every is None and self.total_steps is not None:
            steps = config.eval_tokens / 3 / (config.sequences_per_step * (config.context_length or 1))
            every = math.ceil(max(self.total_steps / EVALUATIONS, training_between(steps, self.total_steps)))
        elif every is None:
            seconds = self._training_seconds(progress) - progress.budget.start_seconds
            training = training_between(last.duration, seconds)
            left = self.seconds_left(progress) - progress.budget.closing_seconds
            if progress.seconds - last.seconds < training or left < training / 2:
                return False
        return self._is_due(progress, every, EVALUATIONS, last.step, last.seconds)

    def sample_is_due(self, progress: Progress) -> bool:
        """Whether to generate a sample now: also at the end of the run."""
        every, last = self.config.sample_every, progress.sample
        is_end = self.is_spent(progress) and last.step != progress.step
        return every != 0 and (is_end or self._is_due(progress, every, SAMPLES, last.step, last.seconds))

    def save_is_due(self, progress: Progress, saved_step: int, saved_seconds: float, *, requested: bool) -> bool:
        """Whether to save the state, which was last saved at `saved_step` and last tried at `saved_seconds`.

        It is saved with all best weights, so that it is never older than they are. After a skipped step it is not
        saved, so that the last state on disk is a good one.
        """
        spent = self.is_spent(progress)
        if saved_step == progress.step or (progress.recovery.consecutive_skips and not spent):
            return False
        every, evaluated = self.config.save_every, progress.evaluation.step == progress.step
        on_schedule = every is not None and progress.step % every == 0
        after_evaluation = evaluated and (every is None or progress.evaluation.is_best)
        late = progress.seconds - saved_seconds > 60 * self.config.save_minutes
        return on_schedule or after_evaluation or late or requested or spent

    def _is_due(self, progress: Progress, every: int | None, parts: int, last_step: int, last_seconds: float) -> bool:
        """Whether something is due again: after `every` steps, or else once in each of `parts` parts of the run."""
        if every is None and self.total_steps is not None:
            every = math.ceil(self.total_steps / parts)
        if every is not None:
            return progress.step // every > last_step // every
        part = self._training_seconds(progress) / parts  # seconds
        return math.floor(progress.seconds / part) > math.floor(last_seconds / part)


def learning_rate(step: int, progress: float, config: TrainConfig) -> float:
    """The learning rate of the step after `step` steps: a linear warmup times the schedule.

    The warmup lasts `warmup_steps`; if they are None, 100 steps or a tenth of the run, whichever ends first. `progress`
    is the part of the run that is done, from 0 to 1. The schedules fall from the peak to `final_learning_rate` x the
    peak: `cosine` over the whole run, `trapezoid` linearly over its last `cooldown`, `constant` never.
    Source: Loshchilov and Hutter 2017, equation 5 (cosine); Hägele et al. 2024, equation 1 (trapezoid).
    """
    if config.warmup_steps is None:
        warmup = min(1.0, max((step + 1) / 100, progress / 0.1))
    else:
        warmup = min(1.0, (step + 1) / max(1, config.warmup_steps))
    floor = config.final_learning_rate
    return config.learning_rate * warmup * (floor + (1 - floor) * schedule_height(progress, config))


def schedule_height(progress: float, config: TrainConfig) -> float:
    """How high the schedule of the learning rate is after the warmup, from 1 to 0."""
    if config.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    if config.schedule == "trapezoid":
        return min(1.0, max(0.0, 1 - progress) / config.cooldown)
    return 1.0
