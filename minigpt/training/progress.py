"""Where a run stands, and how that becomes tensors and plain values and back; it knows no files."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from minigpt.storage.run import LastState
from minigpt.training.distributed import distribute_like
from minigpt.training.spike_detection import SpikeDetector

_OLD_NAMES = {"left_out": "skipped", "left_out_running": "consecutive_skips"}


@dataclass
class Progress:
    """The plain values of a run's state.

    `tokens` are those that its steps have learnt from, whatever the batches' sizes.
    `seconds` are those of the budget that are gone, `began_at` what of them went before the first step.
    `evaluated_step` and `sampled_step` are where that was last done, `evaluated_at` and `sampled_at` when, in seconds
    of the run; `evaluation_seconds` is what the last evaluation took, `evaluated_best` whether it was the best of all.
    `lowest_loss` is the lowest since the run last went back to an earlier state, `stale_evaluations` how many in a row
    were none lower. `cooling_since` is the step at which the cool-down began, `times_back` how often the run went back,
    `skipped` how many steps were left out, `consecutive_skips` how many in a row. `closing_seconds` is what the end of
    the run takes once training is over, `cut` the share of the budget that a run which no longer improves ends at.
    `rate_factor` is what going back after a divergence left of `learning_rate`, the peak that was given, `corpus` the
    fingerprint of the text that all losses are of.
    """

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    began_at: float = 0.0
    best_loss: float | None = None
    best_step: int = 0
    lowest_loss: float | None = None
    stale_evaluations: int = 0
    evaluated_best: bool = False
    evaluated_step: int = -1
    evaluated_at: float = -1.0
    evaluation_seconds: float = 0.0
    sampled_step: int = 0
    sampled_at: float = 0.0
    closing_seconds: float = 0.0
    cut: float | None = None
    cooling_since: int | None = None
    learning_rate: float | None = None
    rate_factor: float = 1.0
    times_back: int = 0
    skipped: int = 0
    consecutive_skips: int = 0
    micro_batch_size: int | None = None
    optimizer: str = ""
    corpus: str = ""
    scaler: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Progress":
        """The progress in a saved state."""
        return cls(**{_OLD_NAMES.get(name, name): value for name, value in values.items()})

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a saved state."""
        return asdict(self)


@dataclass(frozen=True)
class TrainingState:
    """Everything of a run that has a state of its own, beside its progress."""

    model: nn.Module
    optimizers: list[torch.optim.Optimizer]
    scaler: torch.amp.GradScaler
    spike_detector: SpikeDetector

    def optimizer_states(self) -> dict[str, dict[str, Tensor]]:
        """What the optimizers keep of each parameter that one of them has, by its name."""
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        return {
            names[parameter]: optimizer.state[parameter]
            for optimizer in self.optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        }


def capture(
    parts: TrainingState, progress: Progress, collect: Callable[[Tensor], Tensor] = lambda tensor: tensor
) -> LastState:
    """Everything that resuming needs: `model.NAME`, `optimizer.PARAMETER.KEY` and `guard` tensors, and the progress.

    `collect` makes a whole tensor of one that several processes hold in parts.
    """
    progress.scaler = parts.scaler.state_dict()
    tensors = {f"model.{name}": collect(tensor) for name, tensor in parts.model.state_dict().items()}
    for name, kept in parts.optimizer_states().items():
        for key, value in kept.items():
            tensors[f"optimizer.{name}.{key}"] = collect(torch.as_tensor(value))
    tensors["guard.statistics"] = parts.spike_detector.statistics
    return LastState(tensors, progress.to_dict())


def restore(state: LastState, parts: TrainingState, *, optimizer: str) -> Progress:
    """Puts a captured state back, on each parameter's own device; returns the progress.

    The state of another optimizer than the one named is left out; nothing of what the optimizers had stays.
    """
    for each in parts.optimizers:
        each.state.clear()
    present = parts.model.state_dict()
    parameters, states = dict(parts.model.named_parameters()), parts.optimizer_states()
    weights: dict[str, Tensor] = {}
    for full_name, value in state.tensors.items():
        kind, name = full_name.split(".", 1)
        if kind == "model":
            weights[name] = distribute_like(value, present[name])
        elif kind == "guard":
            parts.spike_detector.statistics = value.to(parts.spike_detector.statistics.device)
        elif state.progress["optimizer"] == optimizer:
            parameter_name, key = name.rsplit(".", 1)
            states[parameter_name][key] = distribute_like(value, parameters[parameter_name])
    parts.model.load_state_dict(weights)
    progress = Progress.from_dict(state.progress)
    if progress.scaler:  # empty where the run had no loss scale until now
        parts.scaler.load_state_dict(progress.scaler)
    return progress
