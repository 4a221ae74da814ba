"""Replaces the modules of a model by ones that compute in C, where that is faster: layer norm, linear layers, GELU,
attention and the sums of a block, with their gradients.
"""

import functools
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from minigpt.config import GPTConfig
from minigpt.device import product_dtype
from minigpt.model.attention import CausalSelfAttention, attend
from minigpt.model.gpt import GPT, Block
from minigpt.model.kv_cache import LayerCache
from minigpt.native import operations

# Up to this many positions, PyTorch's fused kernel takes 1.5 to 5 times as long as the formula in bfloat16 on a CPU,
# because its backward pass consists of small products. For longer sequences the formula's (T, T) weights cost more.
_FORMULA_POSITIONS = 512


def accelerate(model: GPT) -> None:
    """Makes the modules of a model compute in C where that is faster than PyTorch, in place.

    Parameters, names and the state stay the same; results are equal to within rounding. On a GPU, without the compiled
    code, for other dtypes and while torch.compile compiles, the modules compute as before. Subclasses stay, and so do
    the modules of `minigpt.model` whose code was changed so that it computes something else than the C code.
    """
    kinds = _kinds()
    for module in model.modules():
        module.__class__ = kinds.get(type(module), type(module))


@functools.cache
def _kinds() -> dict[type[nn.Module], type[nn.Module]]:
    """The kinds of modules that are replaced, and by which."""
    kinds: dict[type[nn.Module], type[nn.Module]] = {nn.LayerNorm: LayerNorm, nn.Linear: Linear, nn.GELU: GELU}
    for plain, fast in ((CausalSelfAttention, Attention), (Block, AcceleratedBlock)):
        if _computes_the_same(plain, fast):
            kinds[plain] = fast
    return kinds


def _computes_the_same(plain: type[nn.Module], fast: type[nn.Module]) -> bool:
    """Whether a small module of both kinds gives the same result, which takes a millisecond."""
    config = GPTConfig(vocab_size=2, n_positions=8, n_embd=32, n_layer=1, n_head=2, dropout=0.0)
    with torch.random.fork_rng(devices=[]), torch.device("cpu"), torch.autocast("cpu", enabled=False), torch.no_grad():
        try:
            module, x = plain(config).to(torch.float32), torch.randn(1, 8, 32, dtype=torch.float32)
            expected = module(x)
            module.__class__ = fast
            return torch.allclose(module(x), expected, rtol=1e-3, atol=1e-3)
        except Exception:  # changed code may fail in any way on a small module
            return False


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
        if operations.linear_fits(x, self.weight, self.bias, product_dtype(x)):
            return _Linear.apply(x, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return super().forward(x)


class GELU(nn.GELU):
    """`nn.GELU`; GPT-2's form of it in C."""

    def forward(self, x: Tensor) -> Tensor:
        if self.approximate == "tanh" and operations.fits(x):
            return _GELU.apply(x)  # type: ignore[no-untyped-call]
        return super().forward(x)


class Attention(CausalSelfAttention):
    """`CausalSelfAttention`; in C all heads at once, or in bfloat16 the weights of up to 512 positions."""

    def forward(self, x: Tensor, cache: LayerCache | None = None, *, last_only: bool = False) -> Tensor:
        if cache is not None or last_only or (self.training and self.dropout):
            return super().forward(x, cache, last_only=last_only)
        qkv = self.qkv_proj(x)  # (B, T, 3C)
        if operations.attention_fits(qkv, self.n_head):
            return self.residual_dropout(self.out_proj(causal_attention(qkv, self.n_head)))
        return self.merge(self.attend(*self.split_heads(qkv)))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None = None) -> Tensor:
        t, s = query.shape[2], key.shape[2]
        is_short = t == s <= _FORMULA_POSITIONS and padding is None
        if not is_short or query.dtype != torch.bfloat16 or query.device.type != "cpu":
            return super().attend(query, key, value, padding)
        dropout = self.dropout if self.training else 0.0
        if not operations.fits(query):
            return attend(query, key, value, self.mask[:t, :t], dropout)[0]
        weights = causal_softmax(query @ key.transpose(-2, -1), 1 / math.sqrt(query.shape[-1]))  # (B, H, T, T)
        return F.dropout(weights, dropout, training=dropout > 0) @ value


class AcceleratedBlock(Block):
    """`Block`; its sums in C."""

    def forward(self, x: Tensor, cache: LayerCache | None = None) -> Tensor:
        x = add(x, self.attention(self.attention_norm(x), cache))  # (B, T, C)
        return add(x, self.mlp(self.mlp_norm(x)))  # (B, T, C)


def add(x: Tensor, y: Tensor) -> Tensor:
    """`x + y`; in C if x is float32 and y bfloat16, which PyTorch would convert in a separate pass."""
    if operations.sum_fits(x, y):
        return _Sum.apply(x, y)  # type: ignore[no-untyped-call]
    return x + y


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
        return operations.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return operations.linear_gradients(gradient, *ctx.saved_tensors, of_input=ctx.needs_input_grad[0])


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
