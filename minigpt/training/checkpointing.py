"""Saves a run while it trains, restores it, and rolls it back: best weights, states, and the log that belongs to them.

If a save fails, the previous one is kept, a notice is yielded, and the next save tries again. If the run's folder was
deleted, moved or replaced, the next save creates a new one; files that were deleted inside it are written again.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minigpt.errors import CheckpointError
from minigpt.storage.adapters import adapter_of, load_trained_state, trained_state
from minigpt.storage.huggingface import to_huggingface
from minigpt.storage.last_state import LastState
from minigpt.storage.run import Run
from minigpt.tokenizer.tokenizer import Tokenizer
from minigpt.training.budget import Budget
from minigpt.training.events import Notice, Saved
from minigpt.training.progress import BestResult, Progress
from minigpt.training.spike_detection import DivergedError
from minigpt.training.state import TrainingState, progress_of
from minigpt.training.world import World, to_local

_NOTHING_YET = "nothing was saved yet"


class Checkpointer:
    """Saves to a run's folder and restores from it. Only the main process writes; without a run nothing is saved.

    `saved_step` is the step of the last state on disk, -1 before the first; `saved_seconds` is when the last save was
    tried, in seconds of the run. `failure` is the error of the last save.
    """

    def __init__(self, run: Run | None, state: TrainingState, tokenizer: Tokenizer, world: World) -> None:
        self.run, self.state, self.tokenizer, self.world = run, state, tokenizer, world
        self.model = state.train_step.model
        (has_run,) = world.all_reduce_max([run is not None])
        self.is_saving = bool(has_run)
        self.saved_step = -1
        self._lost_state = False  # whether its file was missing when the run's folder was last looked at
        self.saved_seconds = 0.0
        self.failure: CheckpointError | None = None
        self.notices: list[str] = []

    @property
    def kept(self) -> str:
        """The state that is on disk now, as text for the user."""
        if self.run is None:  # not the main process, which has the run
            return f"the state of step {self.saved_step:,} was saved" if self.saved_step >= 0 else _NOTHING_YET
        if not self.run.is_in_place:
            return f"no state is kept, because {self.run.directory} was deleted, moved or replaced"
        try:
            progress = self.run.last_progress()
        except CheckpointError as error:
            return f"no state is kept ({error})"
        if progress is not None:
            return f"the state of step {progress['step']:,} is kept"
        return f"no state is kept, because {self.run.last_path} is missing" if self.saved_step >= 0 else _NOTHING_YET

    def take_notices(self, step: int) -> list[Notice]:
        """Returns the notices since the last call."""
        notices, self.notices = self.notices, []
        return [Notice(step, text) for text in notices]

    # Restore.

    def resume(self, budget: Budget) -> Progress | None:
        """Restores the last state, or the one before its cool-down if the budget is longer now.

        Returns None if there is no state yet.
        """
        last = self._load_last()
        if last is None:
            if self.run is not None:
                self.run.truncate_log(-1, frozenset())
            return None
        stopped = progress_of(last)
        if stopped.budget.cooldown_step is not None:
            before = self.world.broadcast_state(self.run.load_before_cooldown() if self.run is not None else None)
            if before is None or not stopped.cooled_down_from(progress_of(before)):
                self.notices.append(
                    "the state from before the learning rate decayed is missing, so the run continues within the decay"
                )
            elif budget.continues_from(stopped, progress_of(before)) is not stopped:
                del last  # closes its file, which is replaced now: Windows does not replace an open file
                return self._resume_before_cooldown(before, stopped)
        progress = self._restore(last)
        self._truncate_log(progress)
        return progress

    def _resume_before_cooldown(self, before: LastState, stopped: Progress) -> Progress:
        """Restores the state before the cool-down, and saves it as the last one.

        Raises: CheckpointError if it cannot be saved; the decayed state and its log are then unchanged.
        """
        progress = self._restore(before)
        keeps_best = self.state.has_comparable_losses(stopped.saved_with) and self._compare_with_best_on_disk(stopped)
        progress.restart_before_cooldown(stopped.best if keeps_best else None)
        self.save_last(progress, again=True)  # or the next resume would start from the decayed state
        if self.failure is not None:
            raise self.failure
        self._truncate_log(progress)
        self.notices.append(
            f"the learning rate had already decayed from step {progress.step:,} to {stopped.step:,}, for a shorter "
            f"budget; the run continues from step {progress.step:,}"
            + (f" and keeps its best weights (step {stopped.best.step:,}) until they are beaten" if keeps_best else "")
        )
        return progress

    def roll_back(self) -> Progress | None:
        """Restores the last state after a divergence and cuts the log back to it; None if there is no state."""
        last = self._load_last()
        if last is None:
            return None
        progress = self._restore(last)
        self._truncate_log(progress)
        return progress

    def load_best(self) -> None:
        """Loads the best weights into the model."""
        best = self.world.broadcast_state(
            LastState(self.run.load_best(self.model), {}) if self.run is not None else None
        )
        assert best is not None
        present = trained_state(self.model)
        place = self.world.distribute_like
        load_trained_state(self.model, {name: place(value, present[name]) for name, value in best.tensors.items()})

    def _load_last(self) -> LastState | None:
        """The last saved state, on every process."""
        return self.world.broadcast_state(self.run.load_last() if self.run is not None else None)

    def _restore(self, state: LastState) -> Progress:
        progress = self.state.restore(state)
        if not self.state.has_comparable_losses(progress.saved_with):
            progress.forget_losses()
            self.state.train_step.spike_detector.reset()
        if not self._compare_with_best_on_disk(progress):
            progress.forget_losses()
            self.notices.append("the best weights are missing or damaged; the weights of the last state replace them")
        self.saved_step, self.saved_seconds = progress.step, progress.seconds
        return progress

    def _compare_with_best_on_disk(self, progress: Progress) -> bool:
        """Adopts the best weights on disk if they are better than the progress says; False if missing or damaged."""
        best = self._best_on_disk()
        if best and progress.best.loss is not None and best[1] < progress.best.loss:
            progress.adopt_best(BestResult(step=best[0], loss=best[1]))
        return best is not False

    def _best_on_disk(self) -> Any:
        """Step and loss of the best weights, on every process; None without a loss, False if missing or damaged.

        Raises: CheckpointError if the system cannot read them.
        """
        best: Any = None
        if self.run is not None:
            try:
                best = self.run.best_figures()
            except CheckpointError as error:
                if isinstance(error.__cause__, OSError) and not isinstance(error.__cause__, FileNotFoundError):
                    raise  # it may be temporary: the weights are not to be replaced
                best = False
        return self.world.broadcast_object(best)

    def _truncate_log(self, progress: Progress) -> None:
        """Drops the lines of the log that are later than a restored state."""
        done = {"loss"}
        if progress.evaluation.step == progress.step:
            done.add("validation_loss")
        if progress.sample.step == progress.step:
            done.add("sample")
        if self.run is not None:
            self.run.truncate_log(progress.step, frozenset(done))

    # Save.

    def log(self, record: Mapping[str, Any]) -> None:
        """Appends a line to the run's log."""
        if self.run is not None:
            self.run.log(record)

    def save_best(self, progress: Progress, loss: float | None) -> Saved | None:
        """Saves the weights as the run's model. Returns None without a run, or if they could not be written.

        Raises: DivergedError if weights are NaN or infinite.
        """
        if not self.is_saving:
            return None
        self._check_finite()
        self.ensure_folder(progress)
        path = self._write_best(progress.step, loss)
        return Saved(progress.step, path, "best") if path else None

    def save_last(self, progress: Progress, *, again: bool = False) -> Saved | None:
        """Saves the state to resume from. Does nothing if this step is already saved, unless `again`.

        Raises: DivergedError if weights are NaN or infinite.
        """
        if not self.is_saving:
            return None
        self.ensure_folder(progress)
        if self.saved_step == progress.step and not (again or self._lost_state):
            return None
        state = self._capture(progress)
        self.saved_seconds = progress.seconds
        path = self._write(lambda run, read: run.save_last(state, read), state.tensors, "the state", progress.step)
        if path is None:
            return None
        self.saved_step = progress.step
        return Saved(progress.step, path, "last")

    def choose_last(self, progress: Progress, loss: float | None) -> bool:
        """Loads the weights of the last step from the saved state, and saves them as the best; False if that failed."""
        if self.saved_step != progress.step or self.roll_back() is None or self.save_best(progress, loss) is None:
            return False
        progress.adopt_best(BestResult(loss, progress.step))
        self.save_last(progress, again=True)
        return True

    def save_before_cooldown(self, progress: Progress) -> None:
        """Saves the state from which a longer budget would continue.

        Raises: DivergedError if weights are NaN or infinite.
        """
        if not self.is_saving:
            return
        self.ensure_folder(progress)
        state = self._capture(progress.with_full_budget())
        self._write(
            lambda run, read: run.save_before_cooldown(state, read),
            state.tensors,
            "the state from before the learning rate decays, from which a longer budget would continue,",
            progress.step,
            then="training continues without it",
        )

    def ensure_folder(self, progress: Progress) -> None:
        """If the run's folder was deleted, moved or replaced, continues in a new one, with the present weights.

        Files that were deleted inside it are written again.

        Raises: DivergedError if weights are NaN or infinite.
        """
        run = self.run
        missing, no_weights, no_state = self.world.all_reduce_max(
            [
                run is not None and not run.is_in_place,
                run is not None and not run.has_weights(self.model),
                run is not None and not run.has_state,
            ]
        )
        self._lost_state = bool(no_state)
        if not missing:
            self._restore_files(progress, lost_best=bool(no_weights))
            return
        self._check_finite()
        self.saved_step = -1
        progress.restart_losses()
        with self.world.gathering(self._best_tensors()) as read:
            self._relocate(progress.step, read)

    def _relocate(self, step: int, read: Callable[[Tensor], Tensor]) -> None:
        """Continues in a new folder, on the main process."""
        if self.run is None:
            return
        before = self.run.directory
        try:
            self.run.relocate(self.model, self.tokenizer, step, read)
        except CheckpointError as error:
            self.failure = error
            self.notices.append(f"{before} was deleted, moved or replaced, and no new folder could be made ({error})")
        else:
            self.world.announce("run", str(self.run.directory))
            self.notices.append(
                f"{before} was deleted, moved or replaced; the run is saved in {self.run.directory} from step "
                f"{step:,} on, and its log there starts at that step"
            )

    def _restore_files(self, progress: Progress, *, lost_best: bool) -> None:
        """Writes files again that were deleted inside the run's folder; the present weights replace lost best ones.

        Raises: DivergedError if weights are NaN or infinite.
        """
        if self.run is not None:
            try:
                restored = self.run.restore_files(self.model, self.tokenizer)
            except CheckpointError as error:
                self.failure = error
                self.notices.append(f"files of {self.run.directory} were deleted and not written again ({error})")
            else:
                if restored:
                    names = ", ".join(restored)
                    self.notices.append(f"files of {self.run.directory} were deleted, and are written again: {names}")
        if not lost_best:
            return
        self._check_finite()
        progress.restart_losses()
        self._write_best(progress.step, None)
        self.notices.append(f"the best weights were deleted; those of step {progress.step:,} replace them")

    def _capture(self, progress: Progress) -> LastState:
        self._check_finite()
        return self.state.capture(progress)

    def _best_tensors(self) -> dict[str, Tensor]:
        """What `Run.save_best` writes. Adapters are never sharded, so that nothing of them is gathered."""
        return {} if adapter_of(self.model) is not None else to_huggingface(self.model)

    def _write_best(self, step: int, loss: float | None) -> Path | None:
        tensors, what = self._best_tensors(), "the best weights"
        return self._write(lambda run, read: run.save_best(self.model, step, loss, read), tensors, what, step)

    def _check_finite(self) -> None:
        weights = map(to_local, trained_state(self.model).values())
        bad = not torch.stack([weight.isfinite().all() for weight in weights]).all()  # waits for a GPU once
        (bad_anywhere,) = self.world.all_reduce_max([bad])
        if bad_anywhere:
            raise DivergedError("weights are NaN or infinite")

    def _write(
        self,
        write: Callable[[Run, Callable[[Tensor], Tensor]], Path],
        tensors: Mapping[str, Tensor],
        what: str,
        step: int,
        then: str = "the next save tries again",
    ) -> Path | None:
        """Returns the path that the main process wrote, or None and a notice if it could not be written.

        The main process reads each of the tensors, which may be sharded, when it writes it.
        """
        path, self.failure = Path(), None
        with self.world.gathering(tensors) as read:
            if self.run is not None:
                try:
                    self.run.flush_log()
                    path = write(self.run, read)
                except CheckpointError as error:
                    self.failure = error
                    self.notices.append(f"{what} of step {step:,} could not be saved ({error}); {self.kept}; {then}")
        (failed,) = self.world.all_reduce_max([self.failure is not None])
        return None if failed else path
