"""Decoding on CUDA: a step whose every shape and address stays the same, recorded once and replayed.

A step at batch 1 is some hundreds of small kernels, and starting them one by one takes the processor longer than the
GPU needs to run them. A recorded step starts all of them at once. It knows no sampling and no text.
"""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.generation.engines.pytorch import TorchEngine
from minigpt.model.attention import KVCache, check_room
from minigpt.model.gpt import GPT, Block

_SHORTEST_SPAN = 128  # cached positions that a step looks at, at least; from there on they double


def static_step(model: GPT, cache: KVCache, ids: Tensor, at: Tensor, padding: Tensor, span: int) -> Tensor:
    """The logits behind one more id of every row, which the cache then holds at position `at`.

    How far the rows are stands in tensors alone, so that the same work can be replayed for any of it: attention always
    looks at the first `span` positions, and the mask hides those that are not written yet, or are padding. `at` must be
    below `span`. `cache.length` is left to the caller.
    Shapes: ids (B, 1), at (1,), padding (B,), all int64 -> (B, 1, V).
    """
    positions = torch.arange(span, device=ids.device)
    mask = ((positions <= at) & (positions >= padding[:, None]))[:, None, None]  # (B, 1, 1, span)
    x = model.token_embedding(ids) + model.position_embedding(at - padding)[:, None]  # (B, 1, C)
    for block, keys, values in zip(model.blocks, cache.keys, cache.values, strict=True):
        assert isinstance(block, Block)
        q, k, v = block.attention.heads(block.attention_norm(x))  # 3 x (B, H, 1, D)
        keys.index_copy_(2, at, k)
        values.index_copy_(2, at, v)
        y = F.scaled_dot_product_attention(q, keys[:, :, :span], values[:, :, :span], attn_mask=mask)  # (B, H, 1, D)
        x = x + block.attention.merge(y)  # (B, 1, C)
        x = x + block.mlp(block.mlp_norm(x))
    return model.logits(model.final_norm(x))


class Step(Protocol):
    """What is recorded: `static_step` as it is or compiled."""

    def __call__(self, model: GPT, cache: KVCache, ids: Tensor, at: Tensor, padding: Tensor, span: int) -> Tensor: ...


class Replay:
    """`static_step` over one cache and span: recorded in a CUDA graph when it is made, replayed at every call.

    On a CPU, where nothing is recorded, it is run anew: the same numbers, for tests.
    """

    def __init__(self, step: Step, model: GPT, cache: KVCache, span: int) -> None:
        rows, device = len(cache.keys[0]), cache.keys[0].device
        self._ids = torch.zeros(rows, 1, dtype=torch.int64, device=device)
        self._at = torch.zeros(1, dtype=torch.int64, device=device)
        self._padding = torch.zeros(rows, dtype=torch.int64, device=device)
        self._work = lambda: step(model, cache, self._ids, self._at, self._padding, span)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._logits = torch.empty(0)
        self._device = device

    def __call__(self, ids: Tensor, at: int, padding: Tensor | None) -> Tensor:
        """Reads one id per row, (B, 1), at position `at`: -> (B, 1, V)."""
        self._ids.copy_(ids)
        self._at.fill_(at)
        if padding is None:
            self._padding.zero_()
        else:
            self._padding.copy_(padding)
        if self._device.type != "cuda":
            return self._work()  # type: ignore[no-untyped-call]
        if self._graph is None:
            self._record()
        assert self._graph is not None
        self._graph.replay()
        return self._logits.clone()  # the graph's own memory is written anew by the next step

    def _record(self) -> None:
        with torch.cuda.device(self._device):
            # Libraries choose their kernels and take their workspaces at the first call, which must not be recorded. It
            # writes the same keys and values that the replay will write.
            aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                for _ in range(2):
                    self._work()  # type: ignore[no-untyped-call]
            torch.cuda.current_stream().wait_stream(aside)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._logits = self._work()  # type: ignore[no-untyped-call]


class GraphEngine(TorchEngine):
    """`TorchEngine`, its steps of one id per row replayed; prompts and several ids at once go the usual way.

    `compiled` fuses the step's kernels first, which takes about a minute and pays where much is generated.
    """

    def __init__(self, model: GPT, *, compiled: bool = False) -> None:
        super().__init__(model)
        self._compiled = compiled
        self._step: Step = torch.compile(static_step, dynamic=False, fullgraph=True) if compiled else static_step
        self._replays: dict[int, Replay] = {}  # by span
        self._recorded: list[Tensor] = []  # the buffers they were made for, kept so that no others take their place

    @property
    def description(self) -> str:
        weight = self.model.token_embedding.weight
        how = "compiled, CUDA graphs" if self._compiled else "CUDA graphs"
        return f"{weight.device}, {str(weight.dtype).removeprefix('torch.')}, {how}"

    @torch.inference_mode()
    def read(self, ids: Tensor) -> Tensor:
        if ids.shape[1] != 1:
            return super().read(ids)
        at = check_room(1, self._cache, self.n_positions)
        logits = self._replay(self._span(at))(ids, at, self._cache.padding)
        self._cache.length += 1
        return logits

    def _span(self, at: int) -> int:
        span = _SHORTEST_SPAN
        while span <= at:
            span *= 2
        return min(span, self.n_positions)

    def _replay(self, span: int) -> Replay:
        buffers = [*self._cache.keys, *self._cache.values]
        if not (self._recorded and _same_memory(self._recorded[0], buffers[0])):
            self._replays.clear()
            self._recorded = buffers
        if span not in self._replays:
            self._replays[span] = Replay(self._step, self.model, self._cache, span)
        return self._replays[span]


def _same_memory(one: Tensor, other: Tensor) -> bool:
    return one.data_ptr() == other.data_ptr() and one.shape == other.shape
