"""The settings of a planned run, and what follows from them: its steps, its time, the loss to expect."""

from dataclasses import dataclass, replace

from minigpt.autoplan.all_settings import all_settings
from minigpt.autoplan.corpus_stats import CorpusStats
from minigpt.autoplan.expectation import ExpectedRange, expected_range, relative_loss
from minigpt.autoplan.overheads import STARTING, Overheads
from minigpt.autoplan.throughput import Measure
from minigpt.config import GPTConfig, TrainConfig
from minigpt.distillation.planning import TEACHER_SHARE, TeacherPlan, relative_loss_with_teacher, teacher_settings

_DISTURBED = 1.2  # times as long as the same steps a moment before or after


@dataclass(frozen=True)
class PlannedSettings:
    """The model's shape, the training settings, and a sentence on each choice that needs one.

    `stats` are those of the text. `seconds_per_step` was measured on this machine. `why_dtype` says why that dtype was
    chosen; it is empty if the user gave it. `memory` is the estimated peak in bytes, without the memory of PyTorch
    itself. `training_seconds` is what a budget in minutes leaves for steps; None if the budget is not in minutes.
    `is_usual` says that the user gave no setting that changes what the model learns, so that the scaling law applies.
    `teacher` is the plan of the teacher that is trained first, None if there is none; the seconds are then those of the
    model that learns from it.
    """

    preset: str
    model: GPTConfig
    training: TrainConfig
    stats: CorpusStats
    seconds_per_step: float
    why_dtype: str
    memory: int
    notes: tuple[str, ...]
    training_seconds: float | None
    is_usual: bool
    teacher: TeacherPlan | None = None

    @property
    def tokens_per_step(self) -> int:
        return self.training.sequences_per_step * (self.training.context_length or 0)

    @property
    def steps(self) -> float:
        """The number of optimizer steps in the budget, if the run does not stop early."""
        training = self.training
        if self.training_seconds is not None:
            return self.training_seconds / self.seconds_per_step
        if training.epochs is not None:
            return training.epochs * self.stats.n_tokens / self.tokens_per_step
        return float(training.steps or 0)

    @property
    def tokens_seen(self) -> float:
        """The number of tokens that the run trains on; a token counts in each epoch."""
        return self.steps * self.tokens_per_step

    @property
    def seconds(self) -> float:
        """The seconds of all steps, with those of the teacher."""
        return self.steps * self.seconds_per_step + (self.teacher.training_seconds if self.teacher else 0.0)

    @property
    def tokens_without_teacher(self) -> float:
        """The number of tokens that one model would train on in the time of both; the same if there is no teacher."""
        if self.teacher is None:
            return self.tokens_seen
        return self.seconds / self.teacher.seconds_per_step * self.tokens_per_step

    @property
    def relative_loss(self) -> float:
        """The expected bits per byte at the end, divided by the text's entropy."""
        return self.relative_loss_without_teacher * self._with_teacher

    @property
    def relative_loss_without_teacher(self) -> float:
        """The same for one model that trains in the time of both, by the scaling law."""
        seen = self.tokens_without_teacher * self.stats.n_bytes / self.stats.n_tokens
        return relative_loss(self.model, seen, self.stats.n_bytes)

    @property
    def expected(self) -> ExpectedRange | None:
        """The range in which the bits per byte at the end are expected; None outside the range of the experiments."""
        if not self.is_usual:
            return None
        sampled = all_settings(self.training).samples_vocabulary(self.model.vocab_size)
        expected = expected_range(self.model, self.tokens_without_teacher, self.stats, sampled=sampled)
        return expected and expected.times(self._with_teacher)

    @property
    def _with_teacher(self) -> float:
        """What the bits per byte of a run without a teacher are multiplied with."""
        if self.teacher is None:
            return 1.0
        passes = self.tokens_without_teacher / self.stats.n_tokens
        return relative_loss_with_teacher(passes, self.model.n_inner_parameters / self.stats.n_bytes)

    def measured_again(self, measure: Measure) -> "PlannedSettings":
        """A copy with the time of a step as measured again, with the settings that were chosen after the first time.

        Without dropout and noise the settings are the same, and both times count. If they differ much, another program
        slowed one of them down, so the shorter one counts.
        """

        def seconds(training: TrainConfig, before: float) -> float:
            again = measure(self.model, training)
            if self.model.dropout or all_settings(self.training).bpe_dropout or all_settings(self.training).token_noise:
                return again
            is_disturbed = max(again, before) > _DISTURBED * min(again, before)
            return min(again, before) if is_disturbed else (again + before) / 2

        teacher = self.teacher
        if teacher is not None:
            step = seconds(self.training.replace(distill="off"), teacher.seconds_per_step)
            teacher = replace(teacher, seconds_per_step=step, training_seconds=teacher.steps * step)
        return replace(self, seconds_per_step=seconds(self.training, self.seconds_per_step), teacher=teacher)

    def slowdown(self, again: "PlannedSettings") -> float:
        """How many times as long a step took when these settings were measured as when `again` were."""
        slowdown = self.seconds_per_step / again.seconds_per_step
        if self.teacher is not None and again.teacher is not None:
            slowdown = max(slowdown, self.teacher.seconds_per_step / again.teacher.seconds_per_step)
        return slowdown

    def from_here(self, step: int, fraction: float, seconds_per_step: float) -> "PlannedSettings":
        """A copy for a run that has taken `step` steps in this fraction of its length, at a new time per step."""
        now = replace(self, seconds_per_step=seconds_per_step)
        if self.teacher is not None:  # its steps would now take as much longer or shorter
            change = seconds_per_step / self.seconds_per_step
            seconds = self.teacher.training_seconds * (1.0 if self.training_seconds is not None else change)
            now = replace(now, teacher=TeacherPlan(seconds, self.teacher.seconds_per_step * change))
        if self.training_seconds is None:
            return now
        return replace(now, training_seconds=step * seconds_per_step + (1 - fraction) * self.training_seconds)

    def with_overheads(self, overheads: Overheads) -> "PlannedSettings":
        """A copy for a budget in minutes of which these overheads are a part."""
        if self.teacher is None:
            return replace(self, training_seconds=overheads.training_seconds(self.training, self.seconds_per_step))
        config = teacher_settings(self.training)
        # The final evaluation of a teacher is like the others.
        of_teacher = replace(overheads, final=min(overheads.final, overheads.evaluation))
        after_it = replace(overheads, start=60 * (config.minutes or 0) + STARTING)
        first = of_teacher.training_seconds(config, self.teacher.seconds_per_step)
        second = after_it.training_seconds(self.training, self.seconds_per_step)
        return replace(self, training_seconds=second, teacher=replace(self.teacher, training_seconds=first))

    def with_teacher(self, seconds_per_step: float) -> "PlannedSettings":
        """A copy with a teacher, whose own steps take so long; those of the model are measured already."""
        config = teacher_settings(self.training)
        if self.training_seconds is None:
            of_teacher = replace(self, training=config, seconds_per_step=seconds_per_step)
            return replace(self, teacher=TeacherPlan(of_teacher.steps * seconds_per_step, seconds_per_step))
        first = TEACHER_SHARE * self.training_seconds
        return replace(
            self, training_seconds=self.training_seconds - first, teacher=TeacherPlan(first, seconds_per_step)
        )
