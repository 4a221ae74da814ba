"""Where a run stands, and how that becomes tensors and plain values and back; it knows no files."""

from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from minigpt.storage.run import LastState


@dataclass
class Progress:
    """The plain values of a run's state.

    `evaluated_step` and `sampled_step` are where that was last done, `evaluated_at` and `sampled_at` when, in seconds
    of the run; `evaluation_seconds` is what the last evaluation took.
    """

    step: int = 0
    seconds: float = 0.0
    best_loss: float | None = None
    best_step: int = 0
    stale_evaluations: int = 0
    evaluated_step: int = -1
    evaluated_at: float = -1.0
    evaluation_seconds: float = 0.0
    sampled_step: int = 0
    sampled_at: float = 0.0
    scaler: dict[str, Any] = field(default_factory=dict)


def capture(
    model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, progress: Progress
) -> LastState:
    """Everything that resuming needs: `model.NAME` and `optimizer.PARAMETER.KEY` tensors, and the progress."""
    progress.scaler = scaler.state_dict()
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state[parameter].items():
            tensors[f"optimizer.{name}.{key}"] = torch.as_tensor(value)
    return LastState(tensors, asdict(progress))


def restore(
    state: LastState, model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
) -> Progress:
    """Puts a captured state back, on each parameter's own device; returns the progress."""
    parameters = dict(model.named_parameters())
    weights: dict[str, Tensor] = {}
    for full_name, value in state.tensors.items():
        kind, name = full_name.split(".", 1)
        if kind == "model":
            weights[name] = value
        else:
            parameter_name, key = name.rsplit(".", 1)
            parameter = parameters[parameter_name]
            optimizer.state[parameter][key] = value.to(parameter.device)
    model.load_state_dict(weights)
    progress = Progress(**state.progress)
    if progress.scaler:  # empty where the run had no loss scale until now
        scaler.load_state_dict(progress.scaler)
    return progress
