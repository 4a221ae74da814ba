"""Writes a run's weights, states and log while it trains, and takes them up again; it decides nothing of the training.

A save that fails is said, and what was saved before stands; the next save tries again.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from minigpt.errors import CheckpointError
from minigpt.model.gpt import GPT
from minigpt.storage.run import LastState, Run
from minigpt.training.budget import Budget
from minigpt.training.distributed import World, distribute_like, to_local
from minigpt.training.events import Event, Notice, Saved
from minigpt.training.progress import Progress, TrainingState, capture, restore


class NotFiniteError(Exception):
    """The weights hold something that is no number, so nothing of them may be kept."""


class Checkpointer:
    """The run's folder as training sees it; without a run nothing is kept, and only the main process writes.

    `saved_step` is the step of the last state on disk, -1 before the first, `saved_at` when it was tried last, in
    seconds of the run; `failure` is what the last save failed of.
    """

    def __init__(self, run: Run | None, parts: TrainingState, world: World, optimizer: str, corpus: str) -> None:
        self.run, self.parts, self.world, self.optimizer, self.corpus = run, parts, world, optimizer, corpus
        (keeps,) = world.all_reduce_max([run is not None])
        self.keeps = bool(keeps)
        self.saved_step = -1
        self.saved_at = 0.0
        self.failure: CheckpointError | None = None
        self.notices: list[str] = []

    @property
    def kept(self) -> str:
        """What of the run stands, in words."""
        return f"the state of step {self.saved_step:,} stands" if self.saved_step >= 0 else "nothing was saved yet"

    # Taking up again.

    def last(self) -> LastState | None:
        """The last saved state, on every process."""
        return self.world.broadcast_state(self.run.load_last() if self.run is not None else None)

    def resume(self, budget: Budget) -> Progress | None:
        """Puts the last state back in place, or the one before its cool-down where the budget has become longer; None
        where the run never saved one and starts at its beginning."""
        last = self.last()
        if last is None:
            if self.run is not None:
                self.run.truncate_log(-1, frozenset())
            return None
        stood = Progress.from_dict(last.progress)
        if stood.cooling_since is not None:
            before = self.world.broadcast_state(self.run.load_before_cooldown() if self.run is not None else None)
            if before is None:
                self.notices.append("the state from before the cool-down is gone, so the run goes on from within it")
            elif budget.cooled_too_early(Progress.from_dict(before.progress), stood):
                return self._warm_again(before, stood)
        progress = self.restore(last)
        self._truncate_log(progress)
        return progress

    def _warm_again(self, before: LastState, stood: Progress) -> Progress:
        progress = self.restore(before)
        progress.lowest_loss, progress.stale_evaluations, progress.evaluated_best = None, 0, False
        stays = stood.corpus == self.corpus and self._best_figures() is not False
        if stays:
            progress.best_loss, progress.best_step = stood.best_loss, stood.best_step
        saved = self.save_last(progress, again=True)  # lest the cooled state be taken up again
        if saved is not None or not self.keeps:  # else that state stands, and its log with it
            self._truncate_log(progress)
        self.notices.append(
            f"the run had cooled down from step {progress.step:,} to {stood.step:,} for a shorter budget: it goes on "
            "from before that"
            + (f", and its best weights (step {stood.best_step:,}) stay until they are beaten" * stays)
        )
        return progress

    def roll_back(self) -> Progress | None:
        """Puts the last state in place of one that went wrong, and cuts the log back to it; None without one."""
        last = self.last()
        if last is None:
            return None
        progress = self.restore(last)
        self._truncate_log(progress)
        return progress

    def restore(self, state: LastState) -> Progress:
        """Puts a saved state in place of the present one."""
        progress = restore(state, self.parts, optimizer=self.optimizer)
        progress.optimizer = self.optimizer
        if progress.corpus != self.corpus:  # another text: what was measured of the first says nothing of it
            progress.corpus, progress.evaluated_step, progress.evaluated_best = self.corpus, -1, False
            progress.best_loss, progress.lowest_loss, progress.stale_evaluations = None, None, 0
            self.parts.spike_detector.forget()
        best = self._best_figures()
        if best is False:
            progress.evaluated_step, progress.evaluated_best = -1, False
            progress.best_loss, progress.lowest_loss, progress.stale_evaluations = None, None, 0
            self.notices.append("the best weights are gone or damaged: those of the last state take their place")
        elif best and progress.best_loss is not None and best[1] < progress.best_loss:
            # The run ended between two writes.
            progress.best_step, progress.best_loss = best
            progress.evaluated_best = progress.evaluated_step == progress.best_step
        self.saved_step, self.saved_at = progress.step, progress.seconds
        return progress

    def _best_figures(self) -> Any:
        """The step and the loss of the best weights, on every process; None without a loss, False where the weights are
        gone or damaged.

        Raises: CheckpointError where the system does not let them be read.
        """
        best: Any = None
        if self.run is not None:
            try:
                best = self.run.best_figures()
            except CheckpointError as error:
                if isinstance(error.__cause__, OSError) and not isinstance(error.__cause__, FileNotFoundError):
                    raise  # what may pass, and costs no weights
                best = False
        return self.world.broadcast_object(best)

    def _truncate_log(self, progress: Progress) -> None:
        """Cuts the log back to a state that was put back."""
        done = {"loss"}
        if progress.evaluated_step == progress.step:
            done.add("validation_loss")
        if progress.sampled_step == progress.step:
            done.add("sample")
        if self.run is not None:
            self.run.truncate_log(progress.step, frozenset(done))

    def load_best(self) -> None:
        """Makes the model what it was at its best."""
        best = self.world.broadcast_state(LastState(self.run.load_best(), {}) if self.run is not None else None)
        assert best is not None
        present = self.parts.model.state_dict()
        self.parts.model.load_state_dict(
            {name: distribute_like(value, present[name]) for name, value in best.tensors.items()}
        )

    # Keeping.

    def log(self, record: Mapping[str, Any]) -> None:
        """Appends to the log."""
        if self.run is not None:
            self.run.log(record)

    def log_event(self, event: Event, *names: str, **more: object) -> None:
        """Appends so much of an event to the log, and more."""
        self.log({name: getattr(event, name) for name in names} | more)

    def take_notices(self, step: int) -> list[Notice]:
        """What could not be written since the last time, to be told."""
        notices, self.notices = self.notices, []
        return [Notice(step, text) for text in notices]

    def save_best(self, model: GPT, step: int, loss: float | None) -> Saved | None:
        """Puts the present weights at the top of the folder; None where there is none or they could not be written."""
        if not self.keeps:
            return None
        self._check_finite()
        whole = self.world.unsharded_model(model)
        path = self._write(lambda run: run.save_best(whole, step, loss), "the best weights", step)
        return Saved(step, path, "best") if path else None

    def save_last(self, progress: Progress, *, again: bool = False) -> Saved | None:
        """Writes what resuming needs, unless this very step is written already and need not be `again`."""
        if not self.keeps or (self.saved_step == progress.step and not again):
            return None
        state = self._capture(progress)
        self.saved_at = progress.seconds
        path = self._write(lambda run: run.save_last(state), "the state", progress.step)
        if path is None:
            return None
        self.saved_step = progress.step
        return Saved(progress.step, path, "last")

    def save_before_cooldown(self, progress: Progress) -> None:
        """Keeps the state that a longer budget goes on from."""
        if self.keeps:
            state = self._capture(progress)
            what = "the state before the cool-down, which a longer budget would go on from,"
            self._write(
                lambda run: run.save_before_cooldown(state), what, progress.step, then="training goes on without"
            )

    def _capture(self, progress: Progress) -> LastState:
        self._check_finite()
        return capture(self.parts, progress, self.world.gather)

    def _check_finite(self) -> None:
        bad = any(not parameter.isfinite().all() for parameter in map(to_local, self.parts.model.parameters()))
        (bad_anywhere,) = self.world.all_reduce_max([bad])
        if bad_anywhere:
            raise NotFiniteError

    def _write(
        self, write: Callable[[Run], Path], what: str, step: int, then: str = "any later save tries again"
    ) -> Path | None:
        """The path that the main process has written, or None, with the reason noted, where the disk refused it."""
        path, self.failure = Path(), None
        if self.run is not None:
            try:
                self.run.flush_log()
                path = write(self.run)
            except CheckpointError as error:
                self.failure = error
                self.notices.append(f"{what} of step {step:,} could not be saved: {error}; {self.kept}, {then}")
        (failed,) = self.world.all_reduce_max([self.failure is not None])
        return None if failed else path
