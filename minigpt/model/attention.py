"""Causal multi-head self-attention."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.config import GPTConfig
from minigpt.errors import ConfigError
from minigpt.model.kv_cache import LayerCache


def causal_mask(length: int) -> Tensor:
    """A boolean (length, length) lower triangle: True where row t may attend to column s, s <= t."""
    device = torch.get_default_device()
    # On the meta device a comparison imports PyTorch's compiler, which takes a second; the CPU needs no compiler.
    positions = torch.arange(length, device="cpu" if device.type == "meta" else device)
    return positions[:, None] >= positions  # (length, length)


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Computes softmax(Q K^T / sqrt(D)) V; returns it with the attention weights, after dropout.

    Shapes: query (..., T, D); key and value (..., S, D); mask broadcastable to (..., T, S), True = may attend;
    result (..., T, D) and (..., T, S).
    Source: Vaswani et al. 2017, equation 1.
    """
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])  # (..., T, S)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    weights = F.dropout(scores.softmax(dim=-1), dropout, training=dropout > 0)  # (..., T, S)
    return weights @ value, weights


def attend_causally(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, padding: Tensor | None = None, dropout: float = 0.0
) -> Tensor:
    """Computes the result of `attend` for the last T of S positions with PyTorch's fused kernel.

    `mask` is the causal mask for all n_positions; `padding` is the number of unused positions at the start of each row.
    Shapes: query (B, H, T, D); key and value (B, H, S, D); mask (n_positions, n_positions); padding (B,) int64;
    result (B, H, T, D).
    """
    t, s = query.shape[2], key.shape[2]
    if t == s and padding is None:
        return F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
    visible: Tensor | None = mask[s - t : s, :s]  # (T, S); `is_causal` would align the first query with the first key
    if padding is not None:
        visible = mask[s - t : s, :s] & not_padding(padding, t, s)  # (B, 1, T, S)
    elif t == 1:  # a single query attends to every key
        visible = None
    return F.scaled_dot_product_attention(query, key, value, attn_mask=visible, dropout_p=dropout)


def not_padding(padding: Tensor, t: int, s: int) -> Tensor:
    """The mask that hides padding from the last T of S positions: (B,) -> (B, 1, T, S), True = may attend.

    A position that is padding attends to itself, because a softmax over no keys is NaN.
    """
    keys = torch.arange(s, device=padding.device)  # (S,)
    return (keys >= padding[:, None, None, None]) | (keys == keys[s - t :, None])


class CausalSelfAttention(nn.Module):
    """Multi-head attention in which a position attends to itself and to earlier positions.

    The causal mask is a registered, non-persistent boolean buffer, (n_positions, n_positions); blocks can share one.
    Source: Vaswani et al. 2017, section 3.2; Radford et al. 2019, section 2.3.
    """

    mask: Tensor

    def __init__(self, config: GPTConfig, mask: Tensor | None = None) -> None:
        super().__init__()
        self.n_head = config.n_head
        self.dropout = config.dropout
        self.qkv_proj = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.out_proj = nn.Linear(config.n_embd, config.n_embd)
        self.residual_dropout = nn.Dropout(config.dropout)
        self.register_buffer("mask", causal_mask(config.n_positions) if mask is None else mask, persistent=False)

    def forward(self, x: Tensor, cache: LayerCache | None = None, *, last_only: bool = False) -> Tensor:
        """Attention of T new positions to themselves and to those in the cache: (B, T, C) -> (B, T, C).

        With `last_only`, only of the last of them: (B, T, C) -> (B, 1, C).
        """
        query, key, value = self.project(x)  # 3 x (B, H, T, D)
        if last_only:
            query = query[:, :, -1:]  # (B, H, 1, D)
        padding = None
        if cache is not None:
            key, value = cache.append(key, value)  # 2 x (B, H, S, D)
            padding = cache.padding
        return self.merge(self.attend(query, key, value, padding))  # (B, T, C)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None = None) -> Tensor:
        """Attention head by head: (B, H, T, D), twice (B, H, S, D), padding (B,) -> (B, H, T, D)."""
        dropout = self.dropout if self.training else 0.0
        return attend_causally(query, key, value, self.mask, padding, dropout)

    def forward_with_weights(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The same by the explicit formula, with its weights: (B, T, C) -> (B, T, C), (B, H, T, T)."""
        query, key, value = self.project(x)  # 3 x (B, H, T, D)
        t = x.shape[1]
        y, weights = attend(query, key, value, self.mask[:t, :t], self.dropout if self.training else 0.0)
        return self.merge(y), weights

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The queries, keys and values of every head: (B, T, C) -> three of (B, H, T, D)."""
        return self.split_heads(self.qkv_proj(x))

    def split_heads(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The projections of all heads, head by head: (B, T, 3C) -> three of (B, H, T, D)."""
        b, t, c = *qkv.shape[:2], qkv.shape[2] // 3
        q, k, v = torch.split(qkv, c, dim=2)  # 3 x (B, T, C)
        q, k, v = (part.view(b, t, self.n_head, c // self.n_head).transpose(1, 2) for part in (q, k, v))
        return q, k, v  # 3 x (B, H, T, D)

    def merge(self, y: Tensor) -> Tensor:
        """Concatenates the heads and applies the output projection: (B, H, T, D) -> (B, T, C)."""
        return self.residual_dropout(self.out_proj(y.transpose(1, 2).flatten(2)))


def check_length(length: int, n_positions: int) -> None:
    """Checks that a sequence fits into the context.

    Raises: ConfigError.
    """
    if length > n_positions:
        raise ConfigError(f"{length} positions are more than the model's context length ({n_positions})")
