"""Everything that resuming a run needs, captured from a training step and restored to it after it is checked."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from minigpt.errors import CheckpointError, ConfigError, quoted
from minigpt.storage.adapters import load_trained_state, trained_state
from minigpt.storage.json_record import is_number
from minigpt.storage.last_state import LastState
from minigpt.training.muon import Muon
from minigpt.training.progress import Progress, SavedWith
from minigpt.training.step import TrainStep

_LOSS_SCALER = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")


@dataclass(frozen=True)
class TrainingState:
    """Everything that resuming a run needs: weights, optimizer states, loss-spike statistics, loss scale, progress.

    `corpus` is the fingerprint of the training text.
    """

    train_step: TrainStep
    corpus: str

    @property
    def evaluated(self) -> str:
        """Which targets of the validation text an evaluation scores, and in which windows."""
        config = self.train_step.config
        return f"{config.scored_role}, context {self.train_step.context}, {config.eval_tokens} tokens"

    def has_comparable_losses(self, saved_with: SavedWith) -> bool:
        """Whether a state's validation losses are of the same targets as those of this run."""
        return (saved_with.corpus, saved_with.evaluated) == (self.corpus, self.evaluated)

    def capture(self, progress: Progress) -> LastState:
        """The state as tensors named `model.*`, `optimizer.PARAMETER.*` and `spike_detector.*`, and plain values.

        A tensor of a sharded model is a sharded one.
        """
        step = self.train_step
        tensors = {f"model.{name}": tensor for name, tensor in trained_state(step.model).items()}
        for name, state in self.optimizer_states().items():
            for key, value in state.items():
                tensors[f"optimizer.{name}.{key}"] = torch.as_tensor(value)
        tensors["spike_detector.statistics"] = step.spike_detector.statistics
        saved_with = SavedWith(
            self._optimizer, self.corpus, self.evaluated, step.micro_batch_size, step.loss_scaler.state_dict(),
            step.parts.given,
        )  # fmt: skip
        return LastState(tensors, replace(progress, saved_with=saved_with).to_dict())

    def restore(self, state: LastState) -> Progress:
        """Restores a captured state on each parameter's own device; returns its progress.

        The optimizer states are restored only if they are of this run's optimizer, and otherwise cleared.
        Raises: CheckpointError for a state that is damaged or of another model; ConfigError if it was trained with
        other functions in place of parts of a step.
        """
        step, progress = self.train_step, progress_of(state)
        saved_with = progress.saved_with
        if saved_with.given != step.parts.given:
            was, now = saved_with.given or "no function", step.parts.given or "none"
            raise ConfigError(f"the run was trained with {was} given in Python, and now has {now}; give the same")
        for optimizer in step.optimizers:
            optimizer.state.clear()
        model = step.model
        present, parameters, states = trained_state(model), dict(model.named_parameters()), self.optimizer_states()
        kept = {name: _kept_by(optimizer, parameter) for name, optimizer, parameter in self._optimized()}
        detector = step.spike_detector
        weights: dict[str, Tensor] = {}
        for full_name, value in state.tensors.items():
            kind, _, name = full_name.partition(".")
            if kind == "model":
                _check_tensor(state, full_name, value, present.get(name))
                weights[name] = step.world.distribute_like(value, present[name])
            elif kind == "spike_detector":
                _check_tensor(state, full_name, value, detector.statistics)
                detector.statistics = value.to(detector.statistics.device)
            elif saved_with.optimizer == self._optimizer:
                parameter_name, _, key = name.rpartition(".")
                required, more = kept.get(parameter_name, ({}, {}))
                like = (required | more).get(key)
                if like is None and required:
                    continue  # an additional state of an optimizer that this run does not use
                if parameter_name in kept and not required:  # an optimizer of an edge
                    like = parameters[parameter_name] if value.shape else detector.statistics[0]
                _check_tensor(state, full_name, value, like)
                states[parameter_name][key] = step.world.distribute_like(value, parameters[parameter_name])
        if missing := sorted(present.keys() - weights.keys()):
            raise CheckpointError(f"{state.damaged}: it has no tensor {'model.' + missing[0]!r}; copy it again")
        for name, entries in states.items():
            required, more = kept[name]
            lacks = required.keys() - entries.keys() or (more.keys() & entries.keys() and more.keys() - entries.keys())
            if entries and lacks:
                raise CheckpointError(f"{state.damaged}: {'optimizer.' + name!r} is incomplete; copy it again")
        load_trained_state(model, weights)
        if saved_with.loss_scaler:  # empty if the run had no loss scale
            _check_loss_scaler(state, saved_with.loss_scaler)
            step.loss_scaler.load_state_dict(saved_with.loss_scaler)
        if step.config.micro_batch_size is None and saved_with.micro_batch_size is not None:
            step.micro_batch_size = min(saved_with.micro_batch_size, len(step.rows))  # which fitted into memory
        return progress

    @property
    def _optimizer(self) -> str:
        """The optimizers of the run: the setting, and the classes of those that edges have put in their place."""
        own = (torch.optim.AdamW, Muon)
        others = {type(each).__name__ for each in self.train_step.optimizers if not isinstance(each, own)}
        return ", ".join([self.train_step.config.optimizer, *sorted(others)])

    def optimizer_states(self) -> dict[str, dict[str, Tensor]]:
        """The optimizer state of each parameter that an optimizer has, by the parameter's name."""
        return {name: optimizer.state[parameter] for name, optimizer, parameter in self._optimized()}

    def _optimized(self) -> Iterator[tuple[str, torch.optim.Optimizer, Tensor]]:
        """The parameters that an optimizer has, with their names."""
        names = {parameter: name for name, parameter in self.train_step.model.named_parameters()}
        for optimizer in self.train_step.optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    yield names[parameter], optimizer, parameter


def _kept_by(optimizer: torch.optim.Optimizer, parameter: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What an optimizer keeps for a parameter after a step, by name, as tensors of the same shapes.

    An optimizer of an edge may have `additional_states(parameter)`, the second of them; a saved state has all of these
    or none. Of an optimizer that is neither AdamW nor Muon nothing is known: it keeps numbers, or tensors of the
    parameter's shape.
    """
    more: dict[str, Tensor] = getattr(optimizer, "additional_states", lambda _: {})(parameter)
    if isinstance(optimizer, Muon):
        return {"momentum": parameter}, more
    if isinstance(optimizer, torch.optim.AdamW):
        return {"step": torch.empty((), device="meta"), "exp_avg": parameter, "exp_avg_sq": parameter}, more
    return {}, more


def progress_of(state: LastState) -> Progress:
    """The progress in a saved state.

    Raises: CheckpointError if it is damaged.
    """
    return Progress.from_dict(state.progress, f"{state.damaged}: its progress")


def _check_tensor(state: LastState, name: str, value: Tensor, like: Tensor | None) -> None:
    """Raises CheckpointError for a tensor of a state that is not of this model (`like` is None), or of another form."""
    if like is None:
        raise CheckpointError(f"{state.damaged}: its tensor {name!r} does not belong to this model; copy it again")
    if value.shape != like.shape or value.dtype != torch.float32:
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
