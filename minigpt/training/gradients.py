"""The gradients of a model's parameters as they are in memory, and how they are clipped."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from minigpt.training.distributed import full_tensor, to_local


def local_gradients(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """What this process has of the parameters' gradients, in their own memory; of a sparse one, its rows."""
    gradients = []
    for parameter in parameters:
        if parameter.grad is None:
            continue
        if parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()  # adds rows of several micro-batches
        gradients.append(parameter.grad.values() if parameter.grad.is_sparse else to_local(parameter.grad))
    return gradients


def zero_if(skip: Tensor, gradients: Sequence[Tensor]) -> None:
    """Zeroes gradients, NaN and infinite ones too, if `skip` () is true; a GPU finds that out by itself.

    The bits of any number times 0 are those of 0.0, so a few kernels for many tensors do it: `masked_fill_` is one for
    each tensor.
    """
    for dtype in (torch.int32, torch.int16):
        bits = [gradient.view(dtype) for gradient in gradients if gradient.element_size() == dtype.itemsize]
        if bits:
            torch._foreach_mul_(bits, (~skip).to(dtype))


def clip_gradients(parameters: Sequence[nn.Parameter], max_norm: float, *, is_sharded: bool) -> Tensor:
    """Scales the gradients to the norm `max_norm` if they exceed it; returns the norm before, (). 0 does not clip.

    torch's `clip_grad_norm_` multiplies in any case, often by 1, so that a GPU need not wait for the norm. A CPU saves
    that: up to a tenth of a small model's step.
    """
    max_norm = max_norm or math.inf
    if is_sharded or parameters[0].device.type != "cpu":
        return full_tensor(torch.nn.utils.clip_grad_norm_(parameters, max_norm))
    gradients = local_gradients(parameters)
    norm = torch.nn.utils.get_total_norm(gradients)
    if not norm + 1e-6 <= max_norm:  # torch adds it too; NaN is not smaller
        torch._foreach_mul_(gradients, max_norm / (norm + 1e-6))
    return norm
