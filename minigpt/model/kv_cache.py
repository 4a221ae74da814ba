"""The key/value cache: what attention computed for earlier positions, so that decoding computes each position once."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from minigpt.config import GPTConfig


class LayerCache:
    """One layer's keys and values: two buffers (B, H, n_positions, D), used up to position `length`.

    The first `padding[b]` positions of row b are unused, so that rows of different lengths end together.
    """

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys = keys
        self.values = values
        self.length = 0
        self.padding: Tensor | None = None  # (B,) int64

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Writes T new keys and values after the earlier ones and returns all S of them.

        Shapes: key and value (B, H, T, D) -> (B, H, S, D) each; both are views of the buffers.
        """
        start, self.length = self.length, self.length + key.shape[2]
        self.keys[:, :, start : self.length] = key
        self.values[:, :, start : self.length] = value
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]

    def keep(self, rows: Tensor, start: int) -> None:
        """Keeps these rows, in this order, without their first `start` positions.

        The buffers keep their memory, unless there are more rows than before.
        """
        self.keys = self._selected(self.keys, rows, start)
        self.values = self._selected(self.values, rows, start)
        self.length -= start

    def _selected(self, buffer: Tensor, rows: Tensor, start: int) -> Tensor:
        used = buffer[:, :, start : self.length][rows]  # (B', H, S, D), a copy
        fits = len(rows) <= len(buffer)
        target = buffer[: len(rows)] if fits else buffer.new_zeros(len(rows), *buffer.shape[1:])
        target[:, :, : used.shape[2]] = used
        return target


class KVCache:
    """The cache of a whole model: one `LayerCache` for each block, allocated once for `n_positions` positions.

    `GPT.features` appends to it.
    """

    def __init__(
        self,
        config: GPTConfig,
        batch_size: int,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        def buffer() -> Tensor:
            shape = (batch_size, config.n_head, config.n_positions, config.head_width)
            return torch.zeros(shape, device=device, dtype=dtype)

        self.layers = [LayerCache(buffer(), buffer()) for _ in range(config.n_layer)]

    @property
    def batch_size(self) -> int:
        """The number of rows, B."""
        return len(self.layers[0].keys)

    @property
    def length(self) -> int:
        """The number of positions that every layer holds, padding included."""
        return self.layers[-1].length  # blocks append in order, so no other layer holds fewer

    @length.setter
    def length(self, length: int) -> None:
        for layer in self.layers:
            layer.length = length

    @property
    def padding(self) -> Tensor | None:
        """The number of unused positions at the start of each row, (B,) int64; None if every row is full."""
        return self.layers[0].padding

    @padding.setter
    def padding(self, padding: Tensor | None) -> None:
        for layer in self.layers:
            layer.padding = padding

    def positions(self, new: int) -> Tensor:
        """The positions of the next `new` ids, (T,), or (B, T) if rows are padded."""
        positions = torch.arange(self.length, self.length + new, device=self.layers[0].keys.device)  # (T,)
        return positions if self.padding is None else (positions - self.padding[:, None]).clamp(min=0)

    def keep(self, rows: Sequence[int]) -> None:
        """Keeps these rows, in this order; a row may appear several times.

        Positions that are padding in all of them are dropped.
        """
        order = torch.tensor(rows, device=self.layers[0].keys.device)
        unused = 0
        if self.padding is not None:
            padding = self.padding[order]
            unused = int(padding.min())
            self.padding = padding - unused if padding.max() > unused else None
        for layer in self.layers:
            layer.keep(order, unused)

    def row(self, row: int) -> "KVCache":
        """An empty cache for one row that uses this one's memory."""
        view = copy.copy(self)
        view.layers = [LayerCache(layer.keys[row : row + 1], layer.values[row : row + 1]) for layer in self.layers]
        return view

    def rewind(self, count: int) -> None:
        """Drops the last `count` positions."""
        self.length -= count

    def reset(self) -> None:
        """Drops every position and the padding; the buffers stay allocated."""
        self.length = 0
        self.padding = None

    def zero(self) -> None:
        """Fills the buffers with zeros, for steps that cover unused positions: a mask does not hide NaN."""
        for layer in self.layers:
            layer.keys.zero_()
            layer.values.zero_()
