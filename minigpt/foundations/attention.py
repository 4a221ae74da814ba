"""Attention as teaching articles build it, in their names, every form the smallest step on the one before.

To be read from top to bottom. It knows nothing of GPT-2's blocks, and nothing else in minigpt imports it;
`foundations_transformer` goes on from its last form to the encoder-decoder. Every form takes one sequence or any
batch of them, (..., T, d_in). The tests tie each form to the next in float64, outputs and gradients, as far as
`CausalSelfAttention`, the module GPT-2 runs on, and `torch.nn.MultiheadAttention`.

Mended, where the articles' own code falls short:

- keys are turned by `transpose(-2, -1)`, not by `.T`, which only fits a single sequence;
- scores are divided by the root of the keys' width, which is right also where the values have another;
- heads stand in an `nn.ModuleList`: in a plain list they are neither trained, moved nor saved;
- names that are used are defined (heads, widths and masks that only an outer notebook cell knew);
- a mask that a module is given reaches its attention, through every block and for every head;
- the causal mask is a boolean buffer outside the saved state, where it was floating point and saved with the weights;
- a bad number of heads, or more positions than the mask has, is an error that says so, not an assertion or a crash.

Source: Raschka 2024, "Build a Large Language Model (From Scratch)", chapter 3; Vaswani et al. 2017, "Attention Is
All You Need", section 3.2.
"""

import math

import torch
from torch import Tensor, nn

from minigpt.errors import ConfigError
from minigpt.model.attention import CausalSelfAttention, causal_mask, check_length


def simple_self_attention(x: Tensor) -> Tensor:
    """Every token as a mixture of all tokens, in proportion to their likeness: softmax(x xᵀ) x; nothing is learned.

    Shapes: (..., T, d_in) -> (..., T, d_in).
    Source: Raschka 2024, section 3.3.
    """
    weights = (x @ x.transpose(-2, -1)).softmax(dim=-1)  # (..., T, T), each row sums to one
    return weights @ x  # (..., T, d_in)


def attention_scores(query: Tensor, key: Tensor) -> Tensor:
    """How well every query fits every key: Q Kᵀ / √d_k, whose root keeps the softmax away from saturation.

    A dot product of d_k terms of variance one has variance d_k; divided by √d_k, it has variance one again.

    Shapes: query (..., T, d_k), key (..., S, d_k) -> (..., T, S).
    Source: Vaswani et al. 2017, section 3.2.1.
    """
    return query @ key.transpose(-2, -1) / math.sqrt(key.shape[-1])


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """softmax(Q Kᵀ / √d_k) V: the same mixture, now with one matrix that asks, one that answers and one that is mixed.

    Shapes: query (..., T, d_k), key (..., S, d_k), value (..., S, d_v) -> (..., T, d_v).
    Source: Vaswani et al. 2017, equation 1.
    """
    return attention_scores(query, key).softmax(dim=-1) @ value


def renormalized_weights(scores: Tensor, mask: Tensor) -> Tensor:
    """Masked attention weights by hand: softmax, hide, then divide each row by what is left of it.

    weights = softmax(scores) ⊙ mask; weights / Σ weights, where mask is the lower triangle `causal_mask(T)`.

    Shapes: scores (..., T, S), mask broadcastable to it, True = may attend -> (..., T, S).
    Source: Raschka 2024, section 3.5.1.
    """
    weights = scores.softmax(dim=-1) * mask  # (..., T, S)
    return weights / weights.sum(dim=-1, keepdim=True)


def boolean_masked_weights(scores: Tensor, mask: Tensor) -> Tensor:
    """The same weights in one pass: a score of -∞ before the softmax is a weight of e^-∞ = 0 after it.

    softmax(scores where mask, else -∞): what is hidden never enters the sum, so there is nothing to divide again.

    Shapes: scores (..., T, S), mask broadcastable to it, True = may attend -> (..., T, S).
    Source: Raschka 2024, section 3.5.1; Vaswani et al. 2017, section 3.2.3.
    """
    return scores.masked_fill(~mask, -math.inf).softmax(dim=-1)


def additive_mask(mask: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """A boolean mask as numbers to add to the scores: 0 where it is True, -∞ where it is False; same shape."""
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, -math.inf)


def additive_masked_weights(scores: Tensor, mask: Tensor) -> Tensor:
    """The same weights once more, softmax(scores + mask), with the mask of 0 and -∞ that `additive_mask` makes.

    Shapes: scores (..., T, S), mask broadcastable to it -> (..., T, S).
    """
    return (scores + mask).softmax(dim=-1)


class SelfAttention_v1(nn.Module):
    """Self-attention with matrices to learn: Q = x W_query, K = x W_key, V = x W_value.

    Queries and keys meet in a dot product and share the width d_out; values may have their own, d_out_v.

    Shapes: (..., T, d_in) -> (..., T, d_out_v).
    Source: Raschka 2024, section 3.4.2.
    """

    def __init__(self, d_in: int, d_out: int, d_out_v: int | None = None) -> None:
        super().__init__()
        self.W_query = nn.Parameter(torch.rand(d_in, d_out))
        self.W_key = nn.Parameter(torch.rand(d_in, d_out))
        self.W_value = nn.Parameter(torch.rand(d_in, d_out if d_out_v is None else d_out_v))

    def forward(self, x: Tensor) -> Tensor:
        return scaled_dot_product_attention(x @ self.W_query, x @ self.W_key, x @ self.W_value)


class SelfAttention_v2(nn.Module):
    """The same with `nn.Linear`, whose initial weights train better, and which can add a bias.

    A linear layer computes x Wᵀ + b: its `weight` is the transpose of v1's matrix.

    Shapes: (..., T, d_in) -> (..., T, d_out).
    Source: Raschka 2024, section 3.4.2.
    """

    def __init__(self, d_in: int, d_out: int, qkv_bias: bool = False) -> None:
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)

    def forward(self, x: Tensor) -> Tensor:
        return scaled_dot_product_attention(self.W_query(x), self.W_key(x), self.W_value(x))


def attention_with_dropout(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: nn.Module
) -> Tensor:
    """dropout(softmax(masked Q Kᵀ / √d_k)) V: the formula complete, some of its weights left out while it trains.

    Dropout comes after the softmax: it forgets a share p of the links and scales the others by 1 / (1 - p), so that
    a row sums to one on average only. This is `minigpt.model.attention.attend`, built up from the forms above.

    Shapes: query (..., T, d_k), key (..., S, d_k), value (..., S, d_v); mask None (all may attend) or broadcastable
    to (..., T, S) with a True in every row -> (..., T, d_v).
    Source: Raschka 2024, section 3.5.2.
    """
    scores = attention_scores(query, key)  # (..., T, S)
    weights = scores.softmax(dim=-1) if mask is None else boolean_masked_weights(scores, mask)  # (..., T, S)
    return dropout(weights) @ value  # (..., T, d_v)


def crop_mask(mask: Tensor, x: Tensor) -> Tensor:
    """The corner of a square mask that belongs to the T positions of `x`: (context_length, context_length) -> (T, T).

    Raises: ConfigError where x has more positions than the mask.
    """
    t = x.shape[-2]
    check_length(t, len(mask))
    return mask[:t, :t]


class CausalAttention(nn.Module):
    """v2 with the mask and the dropout: a token attends to itself and to what came before.

    The mask is a registered buffer, so it follows the module to its device; it is not saved.

    Shapes: (..., T, d_in) -> (..., T, d_out), T at most context_length.
    Source: Raschka 2024, section 3.5.3.
    """

    mask: Tensor

    def __init__(self, d_in: int, d_out: int, context_length: int, dropout: float, qkv_bias: bool = False) -> None:
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("mask", causal_mask(context_length), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        mask = crop_mask(self.mask, x)  # (T, T)
        return attention_with_dropout(self.W_query(x), self.W_key(x), self.W_value(x), mask, self.dropout)


class MultiHeadAttentionWrapper(nn.Module):
    """Several causal heads, each with matrices of its own, side by side: Concat(head_1, ..., head_h).

    Here d_out is the width of one head.

    Shapes: (..., T, d_in) -> (..., T, num_heads * d_out).
    Source: Raschka 2024, section 3.6.1.
    """

    def __init__(
        self, d_in: int, d_out: int, context_length: int, dropout: float, num_heads: int, qkv_bias: bool = False
    ) -> None:
        super().__init__()
        self.heads = nn.ModuleList(
            CausalAttention(d_in, d_out, context_length, dropout, qkv_bias) for _ in range(num_heads)
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([head(x) for head in self.heads], dim=-1)


def head_width(d_out: int, num_heads: int) -> int:
    """D = d_out / num_heads, what each head gets of the width they share.

    Raises: ConfigError where it does not come out even.
    """
    if num_heads < 1 or d_out % num_heads:
        raise ConfigError(f"d_out ({d_out}) must be divisible by num_heads ({num_heads})")
    return d_out // num_heads


class MultiHeadAttentionPerHead(MultiHeadAttentionWrapper):
    """The heads side by side, then mixed: Concat(head_1, ..., head_h) W_O, head_i having its own W_q, W_k and W_v.

    From here on d_out is the width of all heads together.

    Shapes: (..., T, d_in) -> (..., T, d_out).
    Raises: ConfigError where d_out cannot be divided by num_heads.
    Source: Vaswani et al. 2017, section 3.2.2.
    """

    def __init__(
        self, d_in: int, d_out: int, context_length: int, dropout: float, num_heads: int, qkv_bias: bool = False
    ) -> None:
        super().__init__(d_in, head_width(d_out, num_heads), context_length, dropout, num_heads, qkv_bias)
        self.out_proj = nn.Linear(d_out, d_out)

    def forward(self, x: Tensor) -> Tensor:
        return self.out_proj(super().forward(x))


def split_heads(x: Tensor, head_dim: int) -> Tensor:
    """Cuts the width into heads, each a batch entry of its own: (..., T, d_out) -> (..., H, T, D)."""
    return x.view(*x.shape[:-1], -1, head_dim).transpose(-3, -2)


def merge_heads(x: Tensor) -> Tensor:
    """Lays the heads side by side again: (..., H, T, D) -> (..., T, d_out)."""
    return x.transpose(-3, -2).flatten(-2)


class MultiHeadAttention(nn.Module):
    """The same function with the heads' matrices fused: one product computes all queries, which are then split.

    Head i owns rows i·D to (i+1)·D of each weight, so the heads are worked on at once, as one more batch dimension.

    Shapes: (..., T, d_in) -> (..., T, d_out).
    Raises: ConfigError where d_out cannot be divided by num_heads.
    Source: Raschka 2024, section 3.6.2.
    """

    mask: Tensor

    def __init__(
        self, d_in: int, d_out: int, context_length: int, dropout: float, num_heads: int, qkv_bias: bool = False
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = head_width(d_out, num_heads)
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.out_proj = nn.Linear(d_out, d_out)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("mask", causal_mask(context_length), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        queries = split_heads(self.W_query(x), self.head_dim)  # (..., H, T, D)
        keys = split_heads(self.W_key(x), self.head_dim)  # (..., H, T, D)
        values = split_heads(self.W_value(x), self.head_dim)  # (..., H, T, D)
        y = attention_with_dropout(queries, keys, values, crop_mask(self.mask, x), self.dropout)  # (..., H, T, D)
        return self.out_proj(merge_heads(y))


def recover_head(fused: MultiHeadAttention | CausalSelfAttention, index: int) -> CausalAttention:
    """One head of a fused layer as a module of its own, its rows of the fused matrices copied out.

    Its output is what the fused layer's `out_proj` reads in columns index·D to (index+1)·D.

    Raises: ConfigError where there is no such head.
    """
    if isinstance(fused, CausalSelfAttention):
        num_heads, dropout = fused.n_head, fused.dropout
        weights, biases = fused.qkv_proj.weight.chunk(3), fused.qkv_proj.bias.chunk(3)
    else:
        num_heads, dropout = fused.num_heads, fused.dropout.p
        layers = (fused.W_query, fused.W_key, fused.W_value)
        weights, biases = tuple(layer.weight for layer in layers), tuple(layer.bias for layer in layers)
    if not 0 <= index < num_heads:
        raise ConfigError(f"head ({index}) must be from 0 to {num_heads - 1}")
    d_out, d_in = weights[0].shape
    width = d_out // num_heads
    rows = slice(index * width, (index + 1) * width)
    head = CausalAttention(d_in, width, len(fused.mask), dropout, qkv_bias=biases[0] is not None)
    head.to(weights[0]).train(fused.training)
    with torch.no_grad():
        for layer, weight, bias in zip((head.W_query, head.W_key, head.W_value), weights, biases, strict=True):
            layer.weight.copy_(weight[rows])
            if bias is not None:
                layer.bias.copy_(bias[rows])
    return head


class CrossAttention(nn.Module):
    """Multi-head attention from one sequence to another: x asks, `context` answers; Q = x W_query, K, V = context W.

    With itself as context, and no mask, this is an encoder's self-attention; under the causal mask, it is
    `MultiHeadAttention`. How many positions there are is not fixed: the mask is the caller's.

    Shapes: x (..., T, d_in), context (..., S, d_in), mask broadcastable to (..., T, S) with a True in every row, the
    same for every head -> (..., T, d_out).
    Raises: ConfigError where d_out cannot be divided by num_heads.
    Source: Vaswani et al. 2017, section 3.2.3.
    """

    def __init__(self, d_in: int, d_out: int, dropout: float, num_heads: int, qkv_bias: bool = False) -> None:
        super().__init__()
        self.head_dim = head_width(d_out, num_heads)
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.out_proj = nn.Linear(d_out, d_out)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, context: Tensor, mask: Tensor | None = None) -> Tensor:
        queries = split_heads(self.W_query(x), self.head_dim)  # (..., H, T, D)
        keys = split_heads(self.W_key(context), self.head_dim)  # (..., H, S, D)
        values = split_heads(self.W_value(context), self.head_dim)  # (..., H, S, D)
        for_every_head = None if mask is None else mask.unsqueeze(-3)  # (..., 1, T, S)
        y = attention_with_dropout(queries, keys, values, for_every_head, self.dropout)  # (..., H, T, D)
        return self.out_proj(merge_heads(y))
