"""The slot engine for CUDA: one id for each slot by a recorded step of fixed shape, prompts by the model's own pass."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.device import to_device
from minigpt.generation.engines.cuda_graphs import Recording
from minigpt.generation.engines.slots import Chunk
from minigpt.generation.engines.torch_slots import TorchSlots
from minigpt.model.attention import check_length
from minigpt.model.gpt import GPT, Block
from minigpt.model.kv_cache import KVCache

_CHUNK = 256


def slot_step(model: GPT, cache: KVCache, ids: Tensor, at: Tensor) -> Tensor:
    """Computes the logits after one more id in every slot b and writes its keys and values at position `at[b]`.

    Every shape is the same in every call, and so are the kernels: attention covers all n_positions, and the mask hides
    those after `at`.
    Shapes: ids and at (B,) int64 -> (B, V).
    """
    slots = torch.arange(len(ids), device=ids.device)  # (B,)
    mask = (torch.arange(model.config.n_positions, device=ids.device) <= at[:, None])[:, None, None]  # (B, 1, 1, S)
    x = (model.token_embedding(ids) + model.position_embedding(at))[:, None]  # (B, 1, C)
    for block, layer in zip(model.blocks, cache.layers, strict=True):
        assert isinstance(block, Block)
        query, key, value = block.attention.project(block.attention_norm(x))  # 3 x (B, H, 1, D)
        layer.keys[slots, :, at] = key[:, :, 0]
        layer.values[slots, :, at] = value[:, :, 0]
        y = F.scaled_dot_product_attention(query, layer.keys, layer.values, attn_mask=mask)  # (B, H, 1, D)
        x = x + block.attention.merge(y)  # (B, 1, C)
        x = x + block.mlp(block.mlp_norm(x))
    return model.logits(model.final_norm(x))[:, 0]


class CudaSlots(TorchSlots):
    """A `SlotEngine` that reads one id in all slots at once, by a CUDA graph, and longer chunks one after another.

    The step computes every slot, used or not, so that its shapes do not depend on how many are used. A slot that has
    nothing to read writes keys and values to the position that its next id will overwrite.
    """

    chunk_size = _CHUNK
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
        found = {chunk.slot: self.read_alone(chunk) for chunk in chunks if chunk.slot not in single}
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
