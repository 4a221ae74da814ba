"""The slot engine that runs wherever PyTorch runs, which is also the interface of the other slot engines."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minigpt.device import to_device
from minigpt.generation.engine import ModelRunner
from minigpt.model.attention import check_length


@dataclass(frozen=True)
class Chunk:
    """Consecutive ids of one slot, the first at position `start`, of which the last `n_logits` want logits."""

    slot: int
    start: int
    ids: Sequence[int]
    n_logits: int = 1


class Slots(ModelRunner):
    """A model with a key/value cache of several slots, each of which holds one row.

    In one call of `read`, some slots read one id and others a part of a prompt. The keys, values and logits of a slot
    have the same bits whatever the other slots read, and whichever slot it is. They depend on how its own ids are
    divided into chunks, unless `any_chunks` is true. So a caller that wants the same bits again divides the same ids in
    the same way: `chunk_size` ids at a time from position 0 on.

    Here each chunk is a forward pass of the model by itself, because PyTorch's matrix products choose their kernels by
    the number of rows, and these round differently. That costs the speed of a batch: eight rows take eight times as
    long as one.
    """

    chunk_size = 64

    @property
    def n_slots(self) -> int:
        """The number of slots."""
        return self.cache.batch_size

    @torch.inference_mode()
    def read(self, chunks: Sequence[Chunk]) -> list[Tensor]:
        """Reads chunks of different slots: -> for each of them its logits, (n_logits, V) float.

        Raises: ConfigError if a chunk does not fit into the context.
        """
        return [self._read_alone(chunk) for chunk in chunks]

    def _read_alone(self, chunk: Chunk) -> Tensor:
        check_length(chunk.start + len(chunk.ids), self.n_positions)
        row = self.cache.row(chunk.slot)
        row.length = chunk.start
        ids = to_device(torch.tensor([list(chunk.ids)]), self.device)  # (1, T)
        if chunk.n_logits <= 1:
            features = self.model.last_features(ids, row)  # (1, C)
            return self.model.logits(features[: chunk.n_logits])
        return self.model.logits(self.model.features(ids, row)[0, -chunk.n_logits :])

    @torch.inference_mode()
    def save(self, slot: int, start: int, end: int) -> Tensor:
        """A copy of the keys and values of positions [start, end): (L, 2, H, end - start, D)."""
        layers = self.cache.layers
        return torch.stack(
            [torch.stack([layer.keys[slot, :, start:end], layer.values[slot, :, start:end]]) for layer in layers]
        )

    @torch.inference_mode()
    def load(self, slot: int, start: int, saved: Tensor) -> None:
        """Writes saved keys and values, (L, 2, H, T, D), to the positions from `start` on."""
        end = start + saved.shape[3]
        for layer, (keys, values) in zip(self.cache.layers, saved, strict=True):
            layer.keys[slot, :, start:end] = keys
            layer.values[slot, :, start:end] = values
