"""Linear layers whose frozen weights are stored in fewer bits, and expanded for each matrix product.

int8 takes a quarter of float32's memory, bfloat16 half. One matrix at a time is expanded, also in the backward pass.
"""

import threading
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from minigpt.device import product_dtype
from minigpt.model.gpt import GPT

_COMPRESSED_ROWS, _EXPANDED_ROWS = 64, 256  # that are converted at one time: small temporary tensors, fast loops
_LARGEST = 127  # of int8, so that the range is symmetric


class FrozenLinear(nn.Module):
    """A linear layer with frozen weights in int8 or bfloat16: (..., in) -> (..., out).

    int8 has a scale per row: row i of the matrix is `scale[i] * weight[i]`, with the largest number of a row at 127.
    Source: Dettmers et al. 2022, "LLM.int8()", section 3 (row-wise quantization).
    """

    weight: Tensor
    scale: Tensor | None
    bias: Tensor | None

    def __init__(self, linear: nn.Linear, dtype: Literal["int8", "bfloat16"]) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        matrix = linear.weight.detach()
        # What stays is allocated before what is temporary and small, so that no gaps remain in the allocator's memory.
        stored = torch.empty(matrix.shape, dtype=getattr(torch, dtype), device=matrix.device)  # (out, in)
        scale = torch.ones(len(matrix), 1, device=matrix.device) if dtype == "int8" else None  # (out, 1)
        for start in range(0, len(matrix), _COMPRESSED_ROWS):
            rows = slice(start, start + _COMPRESSED_ROWS)
            if scale is None:
                stored[rows] = matrix[rows]
            else:
                scale[rows] = matrix[rows].abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / _LARGEST
                stored[rows] = (matrix[rows] / scale[rows]).round_()
        self.register_buffer("weight", stored)
        self.register_buffer("scale", scale)
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return _Product.apply(x, self.weight, self.scale, self.bias, product_dtype(x))  # type: ignore[no-untyped-call]


def expand(weight: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The matrix of stored weights: (out, in), scale (out, 1) -> (out, in)."""
    return weight.to(dtype) if scale is None else (weight * scale).to(dtype)


_buffers = threading.local()


def _expand_in_buffer(weight: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The matrix of stored weights, in memory that the next call overwrites.

    New memory for each matrix can leave gaps between the activations that are kept; compiled code plans its own memory.
    """
    if torch.compiler.is_compiling():
        return expand(weight, scale, dtype)
    key, buffers = f"{weight.device} {dtype}", vars(_buffers)
    buffer: Tensor | None = buffers.get(key)
    if buffer is None or buffer.numel() < weight.numel():
        # An evaluation may be the first to need it, and training could not write into an inference tensor.
        with torch.inference_mode(False):
            buffer = buffers[key] = torch.empty(weight.numel(), dtype=dtype, device=weight.device)
    matrix = buffer[: weight.numel()].view(weight.shape)
    if scale is None:
        return matrix.copy_(weight)
    if weight.device.type != "cpu":
        return torch.mul(weight, scale, out=matrix)
    for start in range(0, len(weight), _EXPANDED_ROWS):  # torch.mul would convert all of `weight` in new memory first
        rows = slice(start, start + _EXPANDED_ROWS)
        matrix[rows].copy_(weight[rows]).mul_(scale[rows])
    return matrix


class _Product(torch.autograd.Function):
    """x W^T + bias, which keeps only the stored weights for the backward pass."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, x: Tensor, weight: Tensor, scale: Tensor | None, bias: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        ctx.frozen = weight, scale, x.dtype  # type: ignore[attr-defined]
        matrix = _expand_in_buffer(weight, scale, dtype)
        return F.linear(x.to(dtype), matrix, None if bias is None else bias.to(dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        weight, scale, dtype = ctx.frozen  # type: ignore[attr-defined]
        matrix = _expand_in_buffer(weight, scale, gradient.dtype)
        return (gradient @ matrix).to(dtype), None, None, None, None


def compress_linear_layers(model: GPT, dtype: Literal["int8", "bfloat16"]) -> None:
    """Stores the linear layers of the blocks in fewer bits, in place; the model can then only be adapted.

    The other weights become copies, so that a file which the model was mapped from can be closed.
    """
    for name, module in list(model.blocks.named_modules()):
        if isinstance(module, nn.Linear):
            parent, _, own = name.rpartition(".")
            setattr(model.blocks.get_submodule(parent), own, FrozenLinear(module, dtype))
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
