"""The parts of a training step on a CPU in compiled C code, and its use of memory."""

from typing import Any

import torch
from torch import Tensor

from minigpt.config import TrainConfig
from minigpt.device import keep_freed_memory
from minigpt.native import operations, weight_updates
from minigpt.training import muon
from minigpt.training.loss import HEAD_ROWS, HeadPlan, LogitsGradient, head_plan
from minigpt.training.step_parts import StepParts


def use_compiled_code(parts: StepParts, config: TrainConfig, given: dict[str, Any]) -> None:  # noqa: ARG001
    """On a CPU, makes the loss and Muon compute in C where that is faster than PyTorch."""
    if parts.model.token_embedding.weight.device.type != "cpu":
        return
    keep_freed_memory()
    parts.loss.plan = compiled_head_plan
    parts.optimizers = [
        CompiledMuon(optimizer) if type(optimizer) is muon.Muon else optimizer for optimizer in parts.optimizers
    ]


def compiled_head_plan(
    device_type: str, dtype: torch.dtype, vocab_size: int, compiled_gradient: LogitsGradient | None = None
) -> HeadPlan:
    """The plan of `minigpt.training.loss.head_plan`, with the cross entropy in C where that is faster."""
    if device_type == "cpu" and compiled_gradient is None and operations.are_faster(dtype):
        return HeadPlan(HEAD_ROWS, HEAD_ROWS, pads_vocabulary=False, gradient=operations.cross_entropy_)
    return head_plan(device_type, dtype, vocab_size, compiled_gradient)


def orthogonalize(matrices: Tensor, *, bfloat16: bool = False) -> Tensor:
    """`minigpt.training.muon.orthogonalize`, in C where that is faster, in float32 or bfloat16."""
    x = matrices.bfloat16() if bfloat16 else matrices
    if weight_updates.orthogonalization_fits(x):
        return weight_updates.orthogonalize(x, muon.POLYNOMIALS, muon.SAFETY).to(matrices.dtype)
    return muon.orthogonalize(matrices, bfloat16=bfloat16)


class CompiledMuon(muon.Muon):
    """Muon; in C where that is faster than PyTorch."""

    def __init__(self, plain: muon.Muon) -> None:
        settings = plain.defaults
        super().__init__(plain.param_groups, settings["lr"], momentum=settings["momentum"], bfloat16=plain.bfloat16)
        self.orthogonalize = orthogonalize

    def update(self, matrices: list[Tensor], group: dict[str, Any]) -> None:
        if not all(map(weight_updates.update_fits, matrices)):
            super().update(matrices, group)
            return
        momenta = [self.state[matrix]["momentum"] for matrix in matrices]
        gradients = [matrix.grad for matrix in matrices if matrix.grad is not None]
        dtype = torch.bfloat16 if self.bfloat16 else torch.float32
        nesterov = weight_updates.momenta_(momenta, gradients, group["momentum"], dtype)
        directions = self.directions(nesterov, group)
        length = muon.step_length(matrices[0].shape, group)
        weight_updates.move_(matrices, directions, muon.kept_part(group), length)
