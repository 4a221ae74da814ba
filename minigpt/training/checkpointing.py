"""Saves a run while it trains, restores it, and rolls it back: best weights, states, and the log that belongs to them.

If a save fails, the previous one is kept, a notice is yielded, and the next save tries again. If the run's folder was
deleted, moved or replaced, the next save creates a new one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minigpt.errors import CheckpointError
from minigpt.storage.json_record import is_number, quoted
from minigpt.storage.run import LastState, Run
from minigpt.tokenizer.tokenizer import Tokenizer
from minigpt.training.budget import Budget
from minigpt.training.distributed import World, distribute_like, to_local
from minigpt.training.events import Notice, Saved
from minigpt.training.progress import BestResult, Progress, SavedWith
from minigpt.training.spike_detection import DivergedError
from minigpt.training.step import TrainStep

# What AdamW and Muon keep for a parameter, and nothing before the first step.
_OPTIMIZER_STATES: tuple[set[str], ...] = (set(), {"step", "exp_avg", "exp_avg_sq"}, {"momentum"})
_LOSS_SCALER = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")


@dataclass(frozen=True)
class TrainingState:
    """Everything that resuming a run needs: weights, optimizer states, loss-spike statistics, loss scale, progress.

    `corpus` is the fingerprint of the training text.
    """

    train_step: TrainStep
    corpus: str

    def capture(self, progress: Progress, gather: Callable[[Tensor], Tensor] = lambda tensor: tensor) -> LastState:
        """The state as tensors named `model.*`, `optimizer.PARAMETER.*` and `spike_detector.*`, and plain values.

        `gather` returns the full tensor of one that is sharded over several processes.
        """
        step = self.train_step
        tensors = {f"model.{name}": gather(tensor) for name, tensor in step.loss_model.model.state_dict().items()}
        for name, state in self.optimizer_states().items():
            for key, value in state.items():
                tensors[f"optimizer.{name}.{key}"] = gather(torch.as_tensor(value))
        tensors["spike_detector.statistics"] = step.spike_detector.statistics
        saved_with = SavedWith(step.config.optimizer, self.corpus, step.micro_batch_size, step.loss_scaler.state_dict())
        return LastState(tensors, replace(progress, saved_with=saved_with).to_dict())

    def restore(self, state: LastState) -> Progress:
        """Restores a captured state on each parameter's own device; returns its progress.

        The optimizer states are restored only if they are of this run's optimizer, and otherwise cleared.
        Raises: CheckpointError for a state that is damaged or of another model.
        """
        step, progress = self.train_step, _progress(state)
        saved_with = progress.saved_with
        for optimizer in step.optimizers:
            optimizer.state.clear()
        model = step.loss_model.model
        present, parameters, states = model.state_dict(), dict(model.named_parameters()), self.optimizer_states()
        detector = step.spike_detector
        weights: dict[str, Tensor] = {}
        for full_name, value in state.tensors.items():
            kind, _, name = full_name.partition(".")
            if kind == "model":
                _check_tensor(state, full_name, value, present.get(name))
                weights[name] = distribute_like(value, present[name])
            elif kind in ("spike_detector", "guard"):  # "guard" in states of earlier versions
                _check_tensor(state, full_name, value, detector.statistics)
                detector.statistics = value.to(detector.statistics.device)
            elif saved_with.optimizer == step.config.optimizer:
                parameter_name, _, key = name.rpartition(".")
                like = detector.statistics[0] if key == "step" else parameters.get(parameter_name)
                _check_tensor(state, full_name, value, like if parameter_name in parameters else None)
                states[parameter_name][key] = distribute_like(value, parameters[parameter_name])
        if missing := sorted(present.keys() - weights.keys()):
            raise CheckpointError(f"{state.damaged}: it has no tensor {'model.' + missing[0]!r}; copy it again")
        for name, entries in states.items():
            if entries.keys() not in _OPTIMIZER_STATES:
                raise CheckpointError(f"{state.damaged}: {'optimizer.' + name!r} is incomplete; copy it again")
        model.load_state_dict(weights)
        if saved_with.loss_scaler:  # empty if the run had no loss scale
            _check_loss_scaler(state, saved_with.loss_scaler)
            step.loss_scaler.load_state_dict(saved_with.loss_scaler)
        if step.config.micro_batch_size is None and saved_with.micro_batch_size is not None:
            step.micro_batch_size = min(saved_with.micro_batch_size, len(step.rows))  # which fitted into memory
        return progress

    def optimizer_states(self) -> dict[str, dict[str, Tensor]]:
        """The optimizer state of each parameter that an optimizer has, by the parameter's name."""
        names = {parameter: name for name, parameter in self.train_step.loss_model.model.named_parameters()}
        return {
            names[parameter]: optimizer.state[parameter]
            for optimizer in self.train_step.optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        }


def _progress(state: LastState) -> Progress:
    return Progress.from_dict(state.progress, f"{state.damaged}: its progress")


def _check_tensor(state: LastState, name: str, value: Tensor, like: Tensor | None) -> None:
    """Raises CheckpointError for a tensor of a state that is not of this model (`like` is None), or of another form."""
    if like is None:
        raise CheckpointError(f"{state.damaged}: its tensor {name!r} does not belong to this model; copy it again")
    if value.shape != like.shape or not value.is_floating_point():
        raise CheckpointError(
            f"{state.damaged}: its tensor {name!r} is {value.dtype} of shape {tuple(value.shape)}, not "
            f"float32 of shape {tuple(like.shape)}; copy it again"
        )
    if not value.isfinite().all():
        raise CheckpointError(f"{state.damaged}: its tensor {name!r} has NaN or infinite numbers; copy it again")


def _check_loss_scaler(state: LastState, entries: Mapping[str, Any]) -> None:
    """Raises CheckpointError unless the entries are those of torch's GradScaler."""
    wrong = [name for name in _LOSS_SCALER if not is_number(entries.get(name))]
    if wrong:
        raise CheckpointError(
            f"{state.damaged}: its progress: loss_scaler: {wrong[0]} is {quoted(entries.get(wrong[0]))}, not a number; "
            "copy it again"
        )


class Checkpointer:
    """Saves to a run's folder and restores from it. Only the main process writes; without a run nothing is saved.

    `saved_step` is the step of the last state on disk, -1 before the first; `saved_seconds` is when the last save was
    tried, in seconds of the run. `failure` is the error of the last save.
    """

    def __init__(self, run: Run | None, state: TrainingState, tokenizer: Tokenizer, world: World) -> None:
        self.run, self.state, self.tokenizer, self.world = run, state, tokenizer, world
        self.model = state.train_step.loss_model.model
        (has_run,) = world.all_reduce_max([run is not None])
        self.is_saving = bool(has_run)
        self.saved_step = -1
        self.saved_seconds = 0.0
        self.failure: CheckpointError | None = None
        self.notices: list[str] = []

    @property
    def kept(self) -> str:
        """The state that is kept, as text for the user."""
        if self.run is not None and not self.run.is_in_place:
            return f"no state is kept, because {self.run.directory} was deleted, moved or replaced"
        return f"the state of step {self.saved_step:,} is kept" if self.saved_step >= 0 else "nothing was saved yet"

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
        stopped = _progress(last)
        if stopped.budget.cooldown_step is not None:
            before = self.world.broadcast_state(self.run.load_before_cooldown() if self.run is not None else None)
            if before is None:
                self.notices.append(
                    "the state before the learning-rate cool-down is missing, so the run continues from within it"
                )
            elif budget.cooled_down_too_early(_progress(before), stopped):
                return self._resume_before_cooldown(before, stopped)
        progress = self._restore(last)
        self._truncate_log(progress)
        return progress

    def _resume_before_cooldown(self, before: LastState, stopped: Progress) -> Progress:
        progress = self._restore(before)
        keeps_best = stopped.saved_with.corpus == self.state.corpus and self._best_on_disk() is not False
        progress.restart_before_cooldown(stopped.best if keeps_best else None)
        saved = self.save_last(progress, again=True)  # or the next resume would start from the cooled-down state
        if saved is not None or not self.is_saving:  # otherwise that state and its log remain
            self._truncate_log(progress)
        self.notices.append(
            f"the run had cooled down from step {progress.step:,} to {stopped.step:,} for a shorter budget; it "
            f"continues from step {progress.step:,}"
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
        best = self.world.broadcast_state(LastState(self.run.load_best(), {}) if self.run is not None else None)
        assert best is not None
        present = self.model.state_dict()
        self.model.load_state_dict(
            {name: distribute_like(value, present[name]) for name, value in best.tensors.items()}
        )

    def _load_last(self) -> LastState | None:
        """The last saved state, on every process."""
        return self.world.broadcast_state(self.run.load_last() if self.run is not None else None)

    def _restore(self, state: LastState) -> Progress:
        progress = self.state.restore(state)
        if progress.saved_with.corpus != self.state.corpus:
            progress.forget_losses()
            self.state.train_step.spike_detector.reset()
        best = self._best_on_disk()
        if best is False:
            progress.forget_losses()
            self.notices.append("the best weights are missing or damaged; the weights of the last state replace them")
        elif best and progress.best.loss is not None and best[1] < progress.best.loss:
            progress.adopt_best(BestResult(step=best[0], loss=best[1]))
        self.saved_step, self.saved_seconds = progress.step, progress.seconds
        return progress

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
        model, step = self.world.unsharded_model(self.model), progress.step
        path = self._write(lambda run: run.save_best(model, step, loss), "the best weights", step)
        return Saved(step, path, "best") if path else None

    def save_last(self, progress: Progress, *, again: bool = False) -> Saved | None:
        """Saves the state to resume from. Does nothing if this step is already saved, unless `again`.

        Raises: DivergedError if weights are NaN or infinite.
        """
        if not self.is_saving:
            return None
        self.ensure_folder(progress)
        if self.saved_step == progress.step and not again:
            return None
        state = self._capture(progress)
        self.saved_seconds = progress.seconds
        path = self._write(lambda run: run.save_last(state), "the state", progress.step)
        if path is None:
            return None
        self.saved_step = progress.step
        return Saved(progress.step, path, "last")

    def save_before_cooldown(self, progress: Progress) -> None:
        """Saves the state from which a longer budget would continue.

        Raises: DivergedError if weights are NaN or infinite.
        """
        if not self.is_saving:
            return
        self.ensure_folder(progress)
        state = self._capture(progress)
        self._write(
            lambda run: run.save_before_cooldown(state),
            "the state before the cool-down, from which a longer budget would continue,",
            progress.step,
            then="training continues without it",
        )

    def ensure_folder(self, progress: Progress) -> None:
        """If the run's folder was deleted, moved or replaced, continues in a new one, with the present weights.

        Raises: DivergedError if weights are NaN or infinite.
        """
        (missing,) = self.world.all_reduce_max([self.run is not None and not self.run.is_in_place])
        if not missing:
            return
        self._check_finite()
        self.saved_step = -1
        progress.restart_losses()
        model = self.world.unsharded_model(self.model)
        if self.run is None:
            return
        before = self.run.directory
        try:
            self.run.relocate(model, self.tokenizer, progress.step)
        except CheckpointError as error:
            self.failure = error
            self.notices.append(f"{before} was deleted, moved or replaced, and no new folder could be made ({error})")
        else:
            self.notices.append(
                f"{before} was deleted, moved or replaced; the run is saved in {self.run.directory} from step "
                f"{progress.step:,} on, and its log there starts at that step"
            )

    def _capture(self, progress: Progress) -> LastState:
        self._check_finite()
        return self.state.capture(progress, self.world.gather)

    def _check_finite(self) -> None:
        bad = any(not parameter.isfinite().all() for parameter in map(to_local, self.model.parameters()))
        (bad_anywhere,) = self.world.all_reduce_max([bad])
        if bad_anywhere:
            raise DivergedError("weights are NaN or infinite")

    def _write(
        self, write: Callable[[Run], Path], what: str, step: int, then: str = "the next save tries again"
    ) -> Path | None:
        """Returns the path that the main process wrote, or None and a notice if it could not be written."""
        path, self.failure = Path(), None
        if self.run is not None:
            try:
                self.run.flush_log()
                path = write(self.run)
            except CheckpointError as error:
                self.failure = error
                self.notices.append(f"{what} of step {step:,} could not be saved ({error}); {self.kept}; {then}")
        (failed,) = self.world.all_reduce_max([self.failure is not None])
        return None if failed else path
