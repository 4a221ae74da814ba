"""Lion (Chen et al. 2023, algorithm 2): the sign of an interpolated momentum is the update."""

from collections.abc import Iterable
from typing import Any

import torch
from minigpt_lion import LionSettings
from torch import Tensor

from minigpt.config import TrainConfig
from minigpt.training.step_parts import StepParts

_OF_MUON = 0.1  # times the learning rate that suits Muon: Lion moves each element by the whole of it


class Lion(torch.optim.Optimizer):
    """Lion, with decoupled weight decay."""

    def __init__(
        self, parameters: Iterable[Tensor], lr: float, beta1: float, beta2: float, weight_decay: float
    ) -> None:
        super().__init__(parameters, {"lr": lr, "betas": (beta1, beta2), "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            rate, (beta1, beta2) = _OF_MUON * group["lr"], group["betas"]
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is None:
                    continue
                momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
                parameter.mul_(1 - rate * group["weight_decay"])
                parameter.sub_(torch.lerp(gradient, momentum, beta1).sign_(), alpha=rate)
                momentum.lerp_(gradient, 1 - beta2)


def use_lion(parts: StepParts, config: TrainConfig, given: dict[str, object]) -> None:
    """Replaces the optimizers of a step if the setting asks for it."""
    if not LionSettings.of(config).lion:
        return
    parameters = [parameter for parameter in parts.model.parameters() if parameter.requires_grad]
    parts.optimizers = [Lion(parameters, config.learning_rate, 0.9, 0.99, config.weight_decay)]
