"""Layer norm, linear layers, GELU, causal attention and sums with their gradients, in C on a CPU."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from minigpt.device import product_dtype
from minigpt.native import operations
from minigpt.native.linear import linear, linear_fits, linear_gradients


class LayerNorm(nn.LayerNorm):
    """`nn.LayerNorm`; in C under autocast, the result already has the type of the matrix product that reads it."""

    def forward(self, x: Tensor) -> Tensor:
        dtype = product_dtype(x)
        if operations.layer_norm_fits(x, self.weight, dtype):
            return _LayerNorm.apply(x, self.weight, self.bias, self.eps, dtype)  # type: ignore[no-untyped-call]
        return super().forward(x)


class Linear(nn.Linear):
    """`nn.Linear`; in C under autocast to bfloat16, on processors that multiply tiles of it."""

    def forward(self, x: Tensor) -> Tensor:
        if linear_fits(x, self.weight, self.bias, product_dtype(x)):
            return _Linear.apply(x, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return super().forward(x)


def add(x: Tensor, y: Tensor) -> Tensor:
    """`x + y`; in C if x is float32 and y bfloat16, which PyTorch would convert in a separate pass."""
    if operations.sum_fits(x, y):
        return _Sum.apply(x, y)  # type: ignore[no-untyped-call]
    return x + y


def gelu(x: Tensor, approximate: str) -> Tensor:
    """`F.gelu`: the exact function for "none", GPT-2's for "tanh"."""
    if approximate == "tanh" and operations.fits(x):
        return _GELU.apply(x)  # type: ignore[no-untyped-call]
    return F.gelu(x, approximate=approximate)


def causal_softmax(scores: Tensor, scale: float) -> Tensor:
    """The weights softmax(scale · scores) of the keys up to each query; overwrites the scores.

    They must be what `operations.fits` accepts.
    Shapes: (..., T, T) -> (..., T, T).
    """
    return _CausalSoftmax.apply(scores, scale)  # type: ignore[no-untyped-call]


def causal_attention(qkv: Tensor, n_head: int) -> Tensor:
    """Causal attention of every head, from the queries, keys and values of all: (B, T, 3C) -> (B, T, C).

    They must be what `operations.attention_fits` accepts.
    """
    return _CausalAttention.apply(qkv, n_head)  # type: ignore[no-untyped-call]


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float, dtype: torch.dtype) -> Tensor:
        y, statistics = operations.layer_norm(x, weight, bias, epsilon, dtype)
        ctx.save_for_backward(x, weight, statistics)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return *operations.layer_norm_gradient(gradient, *ctx.saved_tensors), None, None


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x if any(ctx.needs_input_grad[1:]) else None, weight)
        return linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return linear_gradients(gradient, *ctx.saved_tensors, of_input=ctx.needs_input_grad[0])


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.dtype = y.dtype
        return operations.add(x, y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, gradient.to(ctx.dtype)


class _GELU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return operations.gelu(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return operations.gelu_gradient(gradient, x)


class _CausalSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, scale: float) -> Tensor:
        weights = operations.causal_softmax_(scores, scale)
        ctx.mark_dirty(scores)
        ctx.save_for_backward(weights)
        ctx.scale = scale
        return weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (weights,) = ctx.saved_tensors
        return operations.causal_softmax_gradient(gradient, weights, ctx.scale), None


class _CausalAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, n_head: int) -> Tensor:
        y, logs = operations.attention(qkv, n_head)
        ctx.save_for_backward(qkv, logs)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return operations.attention_gradient(gradient, *ctx.saved_tensors), None
