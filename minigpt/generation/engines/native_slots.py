"""The slot engine of decode.c: the rows of all slots share one pass over the weights."""

from collections.abc import Sequence

import torch
from torch import Tensor

from minigpt.generation.engines.native import NativeEngine
from minigpt.generation.engines.slots import Chunk
from minigpt.generation.engines.torch_slots import TorchSlots
from minigpt.model.attention import check_length
from minigpt.model.gpt import GPT

_CHUNK = 32


class NativeSlots(TorchSlots):
    """A `SlotEngine` that reads all chunks in one step of decode.c.

    Its kernels add up each row's products in one order, which does not depend on the other rows or on how a prompt is
    divided into chunks.
    """

    any_chunks = True
    chunk_size = _CHUNK

    def __init__(self, model: GPT, n_slots: int, quantization: str = "none") -> None:
        super().__init__(model, n_slots)
        self._engine = NativeEngine(model, quantization)
        self._engine.use_cache(self.cache)

    @property
    def description(self) -> str:
        return self._engine.description

    @torch.inference_mode()
    def read(self, chunks: Sequence[Chunk]) -> list[Tensor]:
        unread, last = [], []  # rows without logits, which `step` wants first, and rows with logits
        for chunk in chunks:
            check_length(chunk.start + len(chunk.ids), self.n_positions)
            rows = [(id, chunk.start + at, chunk.slot) for at, id in enumerate(chunk.ids)]
            without = len(rows) - chunk.n_logits
            unread += rows[:without]
            last += rows[without:]
        logits = self._engine.step(torch.tensor(unread + last, device="cpu"), len(last))
        return list(torch.split(logits, [chunk.n_logits for chunk in chunks]))
