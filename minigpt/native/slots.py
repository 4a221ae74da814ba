"""The slot engine of decode.c, for the edge `slots`."""

from collections.abc import Sequence

import torch
from torch import Tensor

from minigpt.generation.engine_settings import Quantization
from minigpt.model.attention import check_length
from minigpt.model.gpt import GPT
from minigpt.native.engine import NativeEngine
from minigpt.native.engine_provider import fitting_quantization
from minigpt.slots.slots import Chunk, Slots


class NativeSlots(Slots):
    """Slots whose chunks are all read in one step of decode.c.

    Its kernels add up each row's products in one order, which does not depend on the other rows or on how a prompt is
    divided into chunks.
    """

    any_chunks = True
    chunk_size = 32

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


def new_slots(model: GPT, n_slots: int, quantization: Quantization) -> Slots | None:
    """Slots for a model that decode.c runs (the seam `slots`).

    Raises: ConfigError for int8 if it cannot run the model.
    """
    fitting = fitting_quantization(model, quantization)
    return None if fitting is None else NativeSlots(model, n_slots, fitting)
