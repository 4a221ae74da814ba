"""The progress of a run, saved with its state: counters, evaluations, the use of its budget, and recoveries."""

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from minigpt.storage.json_record import JsonRecord, mapping, number


@dataclass(frozen=True)
class BestResult(JsonRecord):
    """The lowest validation loss so far and the step that reached it.

    `loss` is None before the first evaluation, and without a validation text. Unit: nats per token.
    """

    loss: float | None = None
    step: int = 0


@dataclass(frozen=True)
class EvaluationState(JsonRecord):
    """The last evaluation, and how its loss compares with the earlier ones.

    `step` is -1 before the first. `seconds` is when it ended and `duration` how long it took. `is_best` says that it
    gave the best weights. `lowest_loss` is the lowest since the run started or returned to before its cool-down;
    `without_improvement` counts the evaluations in a row that did not lower it.
    """

    step: int = number(-1, min=-1)
    seconds: float = number(-1.0, min=-1)
    duration: float = 0.0
    is_best: bool = False
    lowest_loss: float | None = None
    without_improvement: int = 0


@dataclass(frozen=True)
class SampleState(JsonRecord):
    """When the last sample was generated."""

    step: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class BudgetState(JsonRecord):
    """The use of a run's budget.

    `start_seconds` passed before the first step. `closing_seconds` is what the run needs after its last step. A run
    that no longer improves uses only the fraction `shortened_to` of its budget. Its cool-down began at
    `cooldown_step`.
    """

    start_seconds: float = 0.0
    closing_seconds: float = 0.0
    shortened_to: float | None = number(None, above=0, max=1)
    cooldown_step: int | None = None


@dataclass(frozen=True)
class Recovery(JsonRecord):
    """The reactions of a run to loss spikes and divergence.

    `learning_rate_factor` multiplies the schedule after a rollback. It belongs to `peak_learning_rate`, the setting.
    `consecutive_skips` counts the steps in a row that were skipped until now.
    """

    peak_learning_rate: float | None = number(None, above=0)
    learning_rate_factor: float = number(1.0, above=0, max=1)
    rollbacks: int = 0
    skipped_steps: int = 0
    consecutive_skips: int = 0


@dataclass(frozen=True)
class SavedWith(JsonRecord):
    """The settings of a saved state: parts of it are restored only if these are unchanged.

    `corpus` is the fingerprint of the training text. `evaluated` says which targets of the validation text an
    evaluation scores, and in which windows. `loss_scaler` is the state of torch's
    GradScaler. `given` names what was given in Python in place of parts of a step.
    """

    optimizer: str = ""
    corpus: str = ""
    evaluated: str = ""
    micro_batch_size: int | None = number(None, min=1)
    loss_scaler: dict[str, Any] = field(default_factory=dict)
    given: str = ""


@dataclass
class Progress(JsonRecord):
    """The progress of a run. `tokens` counts the tokens of its steps. Unit: `seconds` of the run, without pauses."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    best: BestResult = BestResult()
    evaluation: EvaluationState = EvaluationState()
    sample: SampleState = SampleState()
    budget: BudgetState = BudgetState()
    recovery: Recovery = Recovery()
    saved_with: SavedWith = field(default_factory=SavedWith)

    @classmethod
    def start(cls, elapsed: float, learning_rate: float) -> "Progress":
        """The progress of a new run that has already used `elapsed` seconds of its budget."""
        return cls(
            seconds=elapsed,
            sample=SampleState(seconds=elapsed),
            budget=BudgetState(start_seconds=elapsed),
            recovery=Recovery(peak_learning_rate=learning_rate),
        )

    @classmethod
    def from_dict(cls, entries: object, location: str = "the saved state is damaged: its progress") -> "Progress":
        """The progress of a saved state.

        Raises: CheckpointError, which begins with `location`, for an entry that is not valid.
        """
        given = dict(mapping(entries, location))
        records: dict[str, Any] = {}
        for name, kind in _RECORDS.items():
            if name in given:
                records[name] = kind.from_dict(given.pop(name), f"{location}: {name}")
        return replace(super().from_dict(given, location), **records)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a saved state: the counters, and a dictionary for each record."""
        return asdict(self)

    # Changes during a run.

    def count_step(self, tokens: int) -> None:
        """Counts a step and its tokens."""
        self.step += 1
        self.tokens += tokens

    def record_result(self, *, skipped: bool, overflowed: bool) -> None:
        """Counts skipped steps. A step with an overflow in float16 does not count as skipped in a row."""
        recovery = self.recovery
        if skipped:
            in_a_row = recovery.consecutive_skips + (not overflowed)
            total = recovery.skipped_steps + 1
            self.recovery = replace(recovery, skipped_steps=total, consecutive_skips=in_a_row)
        elif recovery.consecutive_skips:
            self.recovery = replace(recovery, consecutive_skips=0)

    def would_be_best(self, loss: float | None) -> bool:
        """Whether weights with this validation loss are the best so far. Without a validation text the latest are."""
        best = self.best
        if loss is None or best.loss is None or loss < best.loss:
            return True
        return (loss, self.step) == (best.loss, best.step)  # saved before the run was killed, but without its state

    def record_evaluation(self, loss: float | None, *, is_best: bool, started: float) -> None:
        """Records an evaluation that ended now and began at `started` seconds of the run."""
        last = self.evaluation
        lower = loss is None or last.lowest_loss is None or loss < last.lowest_loss
        self.evaluation = EvaluationState(
            step=self.step,
            seconds=self.seconds,
            duration=self.seconds - started,
            is_best=is_best,
            lowest_loss=loss if lower else last.lowest_loss,
            without_improvement=0 if lower else last.without_improvement + 1,
        )
        if is_best:
            self.best = BestResult(loss, self.step)
        if self.step == 0:
            self.budget = replace(self.budget, start_seconds=self.seconds)

    def reserve_closing_time(self, final_seconds: float) -> None:
        """Reserves time for two evaluations after the last step: one as long as the last one, and the final one."""
        self.budget = replace(self.budget, closing_seconds=self.evaluation.duration + final_seconds)

    def record_sample(self) -> None:
        """Records a sample that was generated now."""
        self.sample = SampleState(self.step, self.seconds)

    def forget_losses(self) -> None:
        """Forgets the validation losses, which were those of other targets or of weights that are lost."""
        self.best = replace(self.best, loss=None)
        self.evaluation = replace(self.evaluation, step=-1, is_best=False, lowest_loss=None, without_improvement=0)

    def restart_losses(self) -> None:
        """Forgets the validation losses and the best weights; those of the present step are the best now."""
        self.forget_losses()
        self.best = BestResult(step=self.step)

    def adopt_best(self, best: BestResult) -> None:
        """Records the best weights on disk as the run's best: it was killed before it could save its state."""
        self.best = best
        self.evaluation = replace(self.evaluation, is_best=self.evaluation.step == best.step)

    def shorten_budget(self, fraction: float) -> None:
        """Lets the run end after this fraction of its budget, since it no longer improves."""
        self.budget = replace(self.budget, shortened_to=fraction)
        self.evaluation = replace(self.evaluation, without_improvement=0)

    def with_full_budget(self) -> "Progress":
        """A copy without the shortening of the budget."""
        return replace(self, budget=replace(self.budget, shortened_to=None))

    def cooled_down_from(self, before: "Progress") -> bool:
        """Whether the cool-down started at the state `before`: an older one is still there if a save failed."""
        return before.step == self.budget.cooldown_step

    def start_cooldown(self) -> None:
        """Records that the learning rate falls from here to the end. Early stopping counts from here again."""
        self.budget = replace(self.budget, cooldown_step=self.step)
        self.evaluation = replace(self.evaluation, without_improvement=0)

    def restart_before_cooldown(self, best: BestResult | None) -> None:
        """Continues from before a cool-down; `best` is the best result of that cool-down, if its weights are kept."""
        self.evaluation = replace(self.evaluation, lowest_loss=None, without_improvement=0, is_best=False)
        self.best = best or self.best

    def use_learning_rate(self, peak: float) -> None:
        """Continues with this peak learning rate. A new one has not diverged yet, so nothing reduces it."""
        if self.recovery.peak_learning_rate not in (None, peak):
            self.recovery = replace(self.recovery, learning_rate_factor=1.0, rollbacks=0)
        self.recovery = replace(self.recovery, peak_learning_rate=peak)

    def continue_after(self, diverged: "Progress") -> None:
        """Continues from this saved state, after the run has diverged, with half the learning rate."""
        self.seconds = diverged.seconds
        self.recovery = replace(
            self.recovery,
            learning_rate_factor=diverged.recovery.learning_rate_factor / 2,
            rollbacks=diverged.recovery.rollbacks + 1,
            consecutive_skips=0,
        )


_RECORDS: dict[str, type[JsonRecord]] = {
    "best": BestResult,
    "evaluation": EvaluationState,
    "sample": SampleState,
    "budget": BudgetState,
    "recovery": Recovery,
    "saved_with": SavedWith,
}
