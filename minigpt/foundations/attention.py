"""Attention step by step, in the order and with the names of teaching articles.

Read it from top to bottom: each form adds one idea to the form before it, and its docstring says which ("New: …").
`foundations/transformer.py` continues with the encoder-decoder. Tests show in float64 that each form equals the next,
in outputs and gradients, up to GPT-2's `CausalSelfAttention` and `torch.nn.MultiheadAttention`.

Inputs are a sequence or any batch of sequences, (..., T, d_in). The articles' own code is corrected in these points:

- keys are transposed with `transpose(-2, -1)`, because `.T` works for a single sequence only;
- scores are divided by the square root of the keys' width, which may differ from the values' width;
- heads are in an `nn.ModuleList`, because modules in a plain list are not trained, moved or saved;
- every name is defined here (the articles define some heads, widths and masks only in a notebook cell);
- a mask that is passed to a module reaches its attention, through every block and for every head;
- the causal mask is a boolean buffer that is not saved, instead of a saved floating-point buffer;
- a wrong number of heads, or a sequence longer than the mask, raises an error that explains it.

Source: Raschka 2024, "Build a Large Language Model (From Scratch)", chapter 3; Vaswani et al. 2017, "Attention Is
All You Need", section 3.2.
"""

import math

import torch
from torch import Tensor, nn

from minigpt.errors import ConfigError
from minigpt.model.attention import CausalSelfAttention, causal_mask, check_length


def simple_self_attention(x: Tensor) -> Tensor:
    """Self-attention without learned weights: softmax(x xᵀ) x.

    Each output is a weighted average of all tokens. A token's weight is larger if its dot product with the input is.

    Shapes: (..., T, d_in) -> (..., T, d_in).
    Source: Raschka 2024, section 3.3.
    """
    weights = (x @ x.transpose(-2, -1)).softmax(dim=-1)  # (..., T, T), each row sums to one
    return weights @ x  # (..., T, d_in)


def attention_scores(query: Tensor, key: Tensor) -> Tensor:
    """The scores of all pairs of a query and a key: Q Kᵀ / √d_k.

    New: the scale. A dot product of d_k terms of variance one has variance d_k; divided by √d_k, it has variance one.
    Larger scores would saturate the softmax, whose gradient then vanishes.

    Shapes: query (..., T, d_k), key (..., S, d_k) -> (..., T, S).
    Source: Vaswani et al. 2017, section 3.2.1.
    """
    return query @ key.transpose(-2, -1) / math.sqrt(key.shape[-1])


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """softmax(Q Kᵀ / √d_k) V.

    New: x has three roles. Queries and keys determine the weights; the weighted average is of values.

    Shapes: query (..., T, d_k), key (..., S, d_k), value (..., S, d_v) -> (..., T, d_v).
    Source: Vaswani et al. 2017, equation 1.
    """
    return attention_scores(query, key).softmax(dim=-1) @ value


class SelfAttention_v1(nn.Module):
    """Self-attention with learned projections: Q = x W_query, K = x W_key, V = x W_value.

    New: three matrices of parameters. Queries and keys have the same width d_out, because of their dot product; the
    width of the values, d_out_v, may differ.

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
    """The same function with `nn.Linear`.

    New: initial weights that train better, and an optional bias. A linear layer computes x Wᵀ + b, so its `weight` is
    the transpose of v1's matrix.

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


def renormalized_weights(scores: Tensor, mask: Tensor) -> Tensor:
    """Masked attention weights in three steps: softmax, set masked weights to zero, divide each row by its sum.

    New: a mask. weights = softmax(scores) ⊙ mask; weights / Σ weights, where mask is the lower triangle
    `causal_mask(T)`, so that no token attends to a later one. In a row whose masked scores are all about 100 above the
    others, every weight that is left is 0, and 0/0 is NaN: masking before the softmax has no such limit.

    Shapes: scores (..., T, S), mask broadcastable to it, True = may attend -> (..., T, S).
    Source: Raschka 2024, section 3.5.1.
    """
    weights = scores.softmax(dim=-1) * mask  # (..., T, S)
    return weights / weights.sum(dim=-1, keepdim=True)


def boolean_masked_weights(scores: Tensor, mask: Tensor) -> Tensor:
    """The same weights in one step: softmax(scores where mask, else -∞).

    New: masking before the softmax. A score of -∞ becomes the weight e^-∞ = 0 and does not enter the softmax's sum, so
    that the rows need no second division.

    Shapes: scores (..., T, S), mask broadcastable to it, True = may attend -> (..., T, S).
    Source: Raschka 2024, section 3.5.1; Vaswani et al. 2017, section 3.2.3.
    """
    return scores.masked_fill(~mask, -math.inf).softmax(dim=-1)


def additive_mask(mask: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Converts a boolean mask to a mask that is added to scores: 0 where it is True, -∞ where it is False."""
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, -math.inf)


def additive_masked_weights(scores: Tensor, mask: Tensor) -> Tensor:
    """The same weights by addition: softmax(scores + mask).

    New: the mask consists of 0 and -∞, from `additive_mask`. PyTorch accepts masks in this form too.

    Shapes: scores (..., T, S), mask broadcastable to it -> (..., T, S).
    """
    return (scores + mask).softmax(dim=-1)


def attention_with_dropout(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: nn.Module
) -> Tensor:
    """The complete formula: dropout(softmax(masked Q Kᵀ / √d_k)) V.

    New: dropout of the weights. After the softmax it sets a fraction p of them to zero and multiplies the others by
    1 / (1 - p), so that a row sums to one only on average. GPT-2's attention uses the same function,
    `minigpt.model.attention.attend`.

    Shapes: query (..., T, d_k), key (..., S, d_k), value (..., S, d_v); mask None (all may attend) or broadcastable
    to (..., T, S) with a True in every row -> (..., T, d_v).
    Source: Raschka 2024, section 3.5.2.
    """
    scores = attention_scores(query, key)  # (..., T, S)
    weights = scores.softmax(dim=-1) if mask is None else boolean_masked_weights(scores, mask)  # (..., T, S)
    return dropout(weights) @ value  # (..., T, d_v)


def crop_mask(mask: Tensor, x: Tensor) -> Tensor:
    """The part of a square mask for the T positions of `x`: (context_length, context_length) -> (T, T).

    Raises: ConfigError if x has more positions than the mask.
    """
    t = x.shape[-2]
    check_length(t, len(mask))
    return mask[:t, :t]


class CausalAttention(SelfAttention_v2):
    """One attention head: a token attends to itself and to earlier tokens.

    New: v2's projections together with the mask and dropout. The mask is a registered buffer, so that it moves to the
    module's device. It is not persistent, so that it is not saved.

    Shapes: (..., T, d_in) -> (..., T, d_out), T at most context_length.
    Source: Raschka 2024, section 3.5.3.
    """

    mask: Tensor

    def __init__(self, d_in: int, d_out: int, context_length: int, dropout: float, qkv_bias: bool = False) -> None:
        super().__init__(d_in, d_out, qkv_bias)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("mask", causal_mask(context_length), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        mask = crop_mask(self.mask, x)  # (T, T)
        return attention_with_dropout(self.W_query(x), self.W_key(x), self.W_value(x), mask, self.dropout)


class MultiHeadAttentionWrapper(nn.Module):
    """Several causal heads: Concat(head_1, ..., head_h).

    New: h independent heads, whose outputs are concatenated. Here d_out is the width of one head.

    Shapes: (..., T, d_in) -> (..., T, num_heads * d_out).
    Raises: ConfigError if num_heads is below 1.
    Source: Raschka 2024, section 3.6.1.
    """

    def __init__(
        self, d_in: int, d_out: int, context_length: int, dropout: float, num_heads: int, qkv_bias: bool = False
    ) -> None:
        super().__init__()
        if num_heads < 1:
            raise ConfigError(f"num_heads ({num_heads}) must be at least 1")
        self.heads = nn.ModuleList(
            CausalAttention(d_in, d_out, context_length, dropout, qkv_bias) for _ in range(num_heads)
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([head(x) for head in self.heads], dim=-1)


def head_width(d_out: int, num_heads: int) -> int:
    """The width of one head, D = d_out / num_heads.

    Raises: ConfigError if d_out is not divisible by num_heads.
    """
    if num_heads < 1 or d_out % num_heads:
        raise ConfigError(f"d_out ({d_out}) must be divisible by num_heads ({num_heads})")
    return d_out // num_heads


class MultiHeadAttentionPerHead(MultiHeadAttentionWrapper):
    """Several causal heads and an output projection: Concat(head_1, ..., head_h) W_O + b_O.

    New: the output projection, which combines the heads. From here on d_out is the total width of all heads.

    Shapes: (..., T, d_in) -> (..., T, d_out).
    Raises: ConfigError if d_out is not divisible by num_heads.
    Source: Vaswani et al. 2017, section 3.2.2, without b_O.
    """

    def __init__(
        self, d_in: int, d_out: int, context_length: int, dropout: float, num_heads: int, qkv_bias: bool = False
    ) -> None:
        super().__init__(d_in, head_width(d_out, num_heads), context_length, dropout, num_heads, qkv_bias)
        self.out_proj = nn.Linear(d_out, d_out)

    def forward(self, x: Tensor) -> Tensor:
        return self.out_proj(super().forward(x))


def split_heads(x: Tensor, head_dim: int) -> Tensor:
    """Splits the width into heads, a new batch dimension: (..., T, d_out) -> (..., H, T, D)."""
    return x.view(*x.shape[:-1], -1, head_dim).transpose(-3, -2)


def merge_heads(x: Tensor) -> Tensor:
    """Concatenates the heads, the inverse of `split_heads`: (..., H, T, D) -> (..., T, d_out)."""
    return x.transpose(-3, -2).flatten(-2)


class MultiHeadAttention(nn.Module):
    """The same function with one matrix product for the queries of all heads, and likewise for keys and values.

    New: the heads' matrices are concatenated, and the heads are a batch dimension of the attention. Head i uses rows
    i·D to (i+1)·D of each weight.

    Shapes: (..., T, d_in) -> (..., T, d_out).
    Raises: ConfigError if d_out is not divisible by num_heads.
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
    """Copies one head of a multi-head layer to a `CausalAttention`.

    Its output is the part of `out_proj`'s input in columns index·D to (index+1)·D.

    Raises: ConfigError if there is no head with this index.
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
    """Multi-head attention from one sequence to another: Q = x W_query, K = context W_key, V = context W_value.

    New: queries come from x, keys and values from `context`, and the caller passes the mask. With x as its own context
    it is an encoder's self-attention without a mask, and `MultiHeadAttention` with the causal mask.

    Shapes: x (..., T, d_in), context (..., S, d_in), mask broadcastable to (..., T, S) with a True in every row, the
    same for every head -> (..., T, d_out).
    Raises: ConfigError if d_out is not divisible by num_heads.
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
        if mask is not None:
            mask = (mask if mask.dim() > 1 else mask[None]).unsqueeze(-3)  # (..., 1, T, S), for every head
        y = attention_with_dropout(queries, keys, values, mask, self.dropout)  # (..., H, T, D)
        return self.out_proj(merge_heads(y))
