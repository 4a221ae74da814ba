"""Causal multi-head self-attention and its key/value cache; it knows no blocks, no tokens and no training."""

import copy
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.config import GPTConfig
from minigpt.errors import ConfigError

# On CPUs torch's fused kernel takes bfloat16 1.5 to 5 times as long as the formula does up to so many positions: its
# backward pass is made of small products. Past that the formula's (T, T) weights cost more than they save.
_WRITTEN_OUT = 512


def causal_mask(length: int) -> Tensor:
    """A boolean (length, length) lower triangle: True where row t may attend to column s, s <= t."""
    device = torch.get_default_device()
    # A comparison on the meta device imports torch's compiler, a second of every start: there it is made on the CPU.
    positions = torch.arange(length, device="cpu" if device.type == "meta" else device)
    return positions[:, None] >= positions  # (length, length)


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    """softmax(Q K^T / sqrt(D)) V written out, and the attention weights themselves, after dropout.

    Shapes: query (..., T, D); key and value (..., S, D); mask broadcastable to (..., T, S), True = may attend;
    result (..., T, D) and (..., T, S).
    Source: Vaswani et al. 2017, equation 1.
    """
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])  # (..., T, S)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    weights = F.dropout(scores.softmax(dim=-1), dropout, training=dropout > 0)  # (..., T, S)
    return weights @ value, weights


class KVCache:
    """The keys and values of every position seen so far, in buffers allocated once; `length` counts positions.

    One pair of buffers per layer, (B, H, n_positions, D). A forward pass writes its T new positions behind the
    `length` old ones, and `GPT.features` then moves `length` on. Rows of different lengths end together: the first
    `padding[b]` positions of row b hold nothing, are seen by no position that holds something, and counted by no
    position embedding.
    """

    def __init__(
        self,
        config: GPTConfig,
        batch_size: int,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        shape = (batch_size, config.n_head, config.n_positions, config.head_width)
        self.keys = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(config.n_layer)]
        self.values = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(config.n_layer)]
        self.length = 0
        self.padding: Tensor | None = None  # (B,) int64

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Writes T new keys and values of one layer behind the old ones; returns all S = length + T of them.

        Shapes: key and value (B, H, T, D) -> (B, H, S, D) each.
        """
        end = self.length + key.shape[2]
        self.keys[layer][:, :, self.length : end] = key
        self.values[layer][:, :, self.length : end] = value
        return self.keys[layer][:, :, :end], self.values[layer][:, :, :end]

    def positions(self, new: int) -> Tensor:
        """The positions of the next `new` ids, (T,), or (B, T) where rows are padded."""
        device = self.keys[0].device
        positions = torch.arange(self.length, self.length + new, device=device)  # (T,)
        return positions if self.padding is None else (positions - self.padding[:, None]).clamp(min=0)

    def keep(self, rows: Sequence[int]) -> None:
        """Goes on with these rows, in this order; a row may go on as several."""
        order = torch.tensor(rows, device=self.keys[0].device)
        unused = 0  # positions at the beginning that none of these rows has
        if self.padding is not None:
            padding = self.padding[order]
            unused = int(padding.min())
            self.padding = padding - unused if padding.max() > unused else None
        length = self.length - unused
        for buffers in (self.keys, self.values):
            for layer, old in enumerate(buffers):
                moved = old[:, :, unused : self.length][order]  # (B', H, S, D), a copy
                new = old[: len(rows)] if len(rows) <= len(old) else old.new_zeros(len(rows), *old.shape[1:])
                new[:, :, :length] = moved
                buffers[layer] = new
        self.length = length

    def row(self, row: int) -> "KVCache":
        """A fresh cache of one row, in this one's memory."""
        view = copy.copy(self)
        view.keys, view.values = ([layer[row : row + 1] for layer in buffers] for buffers in (self.keys, self.values))
        view.reset()
        return view

    def rewind(self, count: int) -> None:
        """Forgets the last `count` positions."""
        self.length -= count

    def reset(self) -> None:
        """Forgets every position; the buffers stay."""
        self.length = 0
        self.padding = None


class CausalSelfAttention(nn.Module):
    """Multi-head attention in which a position sees itself and what came before.

    The mask is a registered, non-persistent boolean buffer, (n_positions, n_positions).
    Source: Vaswani et al. 2017, section 3.2; Radford et al. 2019, section 2.3.
    """

    mask: Tensor

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.n_head = config.n_head
        self.dropout = config.dropout
        self.qkv_proj = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.out_proj = nn.Linear(config.n_embd, config.n_embd)
        self.residual_dropout = nn.Dropout(config.dropout)
        self.register_buffer("mask", causal_mask(config.n_positions), persistent=False)

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of every head: (B, T, C) -> three of (B, H, T, D)."""
        b, t, c = x.shape
        q, k, v = self.qkv_proj(x).split(c, dim=2)  # 3 x (B, T, C)
        q, k, v = (part.view(b, t, self.n_head, c // self.n_head).transpose(1, 2) for part in (q, k, v))
        return q, k, v  # 3 x (B, H, T, D)

    def merge(self, x: Tensor) -> Tensor:
        """The heads side by side again, mixed by the output projection: (B, H, T, D) -> (B, T, C)."""
        merged = x.transpose(1, 2).flatten(2)  # (B, T, C)
        return self.residual_dropout(self.out_proj(merged))

    def forward(self, x: Tensor, cache: KVCache | None = None, layer: int = 0) -> Tensor:
        """Attention by torch's fused kernel or, where that is slower (bfloat16 on a CPU, up to 512 positions), by the
        formula written out: (B, T, C) -> (B, T, C).

        With a cache, the T positions of `x` come behind the cached ones and attend to those too.
        """
        q, k, v = self.heads(x)
        dropout = self.dropout if self.training else 0.0
        if cache is not None:
            k, v = cache.append(layer, k, v)  # (B, H, S, D)
        t, s = q.shape[2], k.shape[2]
        # torch aligns its own causal flag to the first key, so it is right only where T == S. One new position
        # sees everything; several behind a cache need the mask's own rows.
        padding = None if cache is None else cache.padding
        mask = None if t in (1, s) and padding is None else self.mask[s - t : s, :s]  # (T, S)
        if mask is not None and padding is not None:
            # What is padded sees itself alone: a row without anything to see would have no softmax.
            keys = torch.arange(s, device=x.device)
            held = (keys >= padding[:, None, None, None]) | (keys == keys[s - t :, None])  # (B, 1, T, S)
            mask = mask & held
        causal = t == s and mask is None
        if causal and t <= _WRITTEN_OUT and q.dtype == torch.bfloat16 and q.device.type == "cpu":
            y, _ = attend(q, k, v, self.mask[:t, :t], dropout)
        else:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal)
        return self.merge(y)

    def forward_with_weights(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The same attention by the written-out formula, and its weights: (B, T, C) -> (B, T, C), (B, H, T, T)."""
        q, k, v = self.heads(x)
        t = x.shape[1]
        y, weights = attend(q, k, v, self.mask[:t, :t], self.dropout if self.training else 0.0)
        return self.merge(y), weights


def check_room(new: int, cache: KVCache | None, n_positions: int) -> int:
    """The position of the first new token, where all of them fit into the context.

    Raises: ConfigError.
    """
    start = cache.length if cache is not None else 0
    if start + new > n_positions:
        raise ConfigError(f"{start + new} positions are more than the model's context length ({n_positions})")
    return start
