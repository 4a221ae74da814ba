"""The slot engine that runs wherever PyTorch runs: each chunk is a forward pass by itself."""

from collections.abc import Sequence

import torch
from torch import Tensor

from minigpt.device import to_device
from minigpt.generation.engines.pytorch import PyTorchRunner
from minigpt.generation.engines.slots import Chunk
from minigpt.model.attention import check_length
from minigpt.model.gpt import GPT
from minigpt.model.kv_cache import KVCache

_CHUNK = 64


class TorchSlots(PyTorchRunner):
    """A `SlotEngine` that runs the model's own forward pass, one chunk after another.

    PyTorch's matrix products choose their kernels by the number of rows, and these round differently. A row is
    therefore never multiplied together with another one. That costs the speed of a batch: eight rows take eight times
    as long as one.
    """

    any_chunks = False
    chunk_size = _CHUNK

    def __init__(self, model: GPT, n_slots: int) -> None:
        self.model, self.n_slots = model, n_slots
        weight = model.token_embedding.weight
        self.cache = KVCache(model.config, n_slots, device=weight.device, dtype=weight.dtype)

    @torch.inference_mode()
    def read(self, chunks: Sequence[Chunk]) -> list[Tensor]:
        return [self.read_alone(chunk) for chunk in chunks]

    def read_alone(self, chunk: Chunk) -> Tensor:
        """Reads one chunk: -> (n_logits, V)."""
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
        layers = self.cache.layers
        return torch.stack(
            [torch.stack([layer.keys[slot, :, start:end], layer.values[slot, :, start:end]]) for layer in layers]
        )

    @torch.inference_mode()
    def load(self, slot: int, start: int, saved: Tensor) -> None:
        end = start + saved.shape[3]
        for layer, (keys, values) in zip(self.cache.layers, saved, strict=True):
            layer.keys[slot, :, start:end] = keys
            layer.values[slot, :, start:end] = values
