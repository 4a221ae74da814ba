"""The slot engine for CUDA, for the edge `slots`."""

from collections.abc import Sequence

import torch
from torch import Tensor

from minigpt.cuda.graphs import Recording, decode_blocks, is_on_cuda
from minigpt.device import to_device
from minigpt.generation.engine_settings import Quantization
from minigpt.model.attention import check_length
from minigpt.model.gpt import GPT
from minigpt.model.kv_cache import KVCache
from minigpt.slots.slots import Chunk, Slots


def slot_step(model: GPT, cache: KVCache, ids: Tensor, at: Tensor) -> Tensor:
    """Computes the logits after one more id in every slot b and writes its keys and values at position `at[b]`.

    Every shape is the same in every call, and so are the kernels: attention covers all n_positions, and the mask hides
    those after `at`.
    Shapes: ids and at (B,) int64 -> (B, V).
    """
    slots, span = torch.arange(len(ids), device=ids.device), model.config.n_positions  # (B,)
    mask = (torch.arange(span, device=ids.device) <= at[:, None])[:, None, None]  # (B, 1, 1, span)
    x = (model.token_embedding(ids) + model.position_embedding(at))[:, None]  # (B, 1, C)

    def write(buffer: Tensor, new: Tensor) -> None:
        buffer[slots, :, at] = new[:, :, 0]

    return decode_blocks(model, cache, x, mask, span, write)[:, 0]


class CudaSlots(Slots):
    """Slots that read one id each at once, by a CUDA graph, and longer chunks one after another.

    The step computes every slot, used or not, so that its shapes do not depend on how many are used. A slot that has
    nothing to read writes keys and values to the position that its next id will overwrite.
    """

    chunk_size = 256
    implementation = "CUDA graphs"

    def __init__(self, model: GPT, n_slots: int) -> None:
        super().__init__(model, n_slots)
        self._next = [0] * n_slots  # the position of each slot's next id
        self._inputs = torch.zeros(2, n_slots, dtype=torch.int64, device=self.device)  # each slot's id and its position
        ids, at = self._inputs
        cache = self.cache
        # Without `self`: a reference cycle would keep the cache's memory until the next garbage collection.
        self._step = Recording(lambda: slot_step(model, cache, ids, at), self.device)

    @torch.inference_mode()
    def read(self, chunks: Sequence[Chunk]) -> list[Tensor]:
        single = {chunk.slot: chunk for chunk in chunks if len(chunk.ids) == 1 and chunk.start > 0}
        for chunk in chunks:
            check_length(chunk.start + len(chunk.ids), self.n_positions)
            self._begin(chunk.slot, chunk.start)
            self._next[chunk.slot] = chunk.start + len(chunk.ids)
        found = {chunk.slot: self._read_alone(chunk) for chunk in chunks if chunk.slot not in single}
        if single:
            ids, at = [0] * self.n_slots, [min(each, self.n_positions - 1) for each in self._next]
            for slot, chunk in single.items():
                ids[slot], at[slot] = chunk.ids[0], chunk.start
            self._inputs.copy_(to_device(torch.tensor([ids, at]), self.device))
            logits = self._step()  # (B, V)
            found |= {slot: logits[slot : slot + 1][: chunk.n_logits] for slot, chunk in single.items()}
        return [found[chunk.slot] for chunk in chunks]

    @torch.inference_mode()
    def load(self, slot: int, start: int, saved: Tensor) -> None:
        self._begin(slot, start)
        super().load(slot, start, saved)
        self._next[slot] = start + saved.shape[3]

    def _begin(self, slot: int, start: int) -> None:
        """Clears a slot for a new text, which begins at position 0."""
        if start == 0:
            self.cache.row(slot).zero()


def new_slots(model: GPT, n_slots: int, quantization: Quantization) -> Slots | None:  # noqa: ARG001
    """Slots for a model on CUDA (the seam `slots`)."""
    return CudaSlots(model, n_slots) if is_on_cuda(model) else None
