"""The engine that runs wherever PyTorch runs: the model's own forward pass with a key/value cache."""

from collections.abc import Sequence

import torch
from torch import Tensor

from minigpt.device import to_device
from minigpt.generation.engines.engine import SharedCache
from minigpt.model.attention import check_length
from minigpt.model.gpt import GPT
from minigpt.model.kv_cache import KVCache
from minigpt.threads import watch_load


class PyTorchRunner:
    """The properties of engines that run the model's own forward pass; `implementation` says how."""

    model: GPT
    implementation = "PyTorch"

    @property
    def description(self) -> str:
        weight = self.model.token_embedding.weight
        return f"{weight.device}, {str(weight.dtype).removeprefix('torch.')}, {self.implementation}"

    @property
    def device(self) -> torch.device:
        return self.model.token_embedding.weight.device

    @property
    def n_positions(self) -> int:
        return self.model.config.n_positions


class TorchEngine(PyTorchRunner, SharedCache):
    """An `Engine` that runs the model's own forward pass; the reference for the other engines.

    Prompts of different lengths are padded on the left, so that they end together.
    """

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.model = model
        self._cache = self._new_cache(0)
        if self.device.type == "cpu":
            watch_load(torch.get_num_threads())

    def _new_cache(self, rows: int) -> KVCache:
        weight = self.model.token_embedding.weight
        return KVCache(self.model.config, rows, device=weight.device, dtype=weight.dtype)

    def _replace_cache(self, rows: int) -> None:
        self._cache = self._new_cache(0)  # frees the old cache before the new one is allocated
        self._cache = self._new_cache(rows)

    @property
    def length(self) -> int:
        return self._cache.length

    @torch.inference_mode()
    def start(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        self.n_starts += 1
        longest = max(len(prompt) for prompt in prompts)
        check_length(longest, self.n_positions)
        if self._cache.batch_size == len(prompts):
            self._cache.reset()
        else:
            self._replace_cache(len(prompts))
        padding = [longest - len(prompt) for prompt in prompts]
        ids = [[0] * pad + list(prompt) for pad, prompt in zip(padding, prompts, strict=True)]
        if any(padding):
            self._cache.padding = to_device(torch.tensor(padding), self.device)  # (B,)
        return self.model.logits(self.model.last_features(to_device(torch.tensor(ids), self.device), self._cache))

    @torch.inference_mode()
    def read(self, ids: Tensor) -> Tensor:
        return self.model.logits(self.model.features(ids, self._cache))

    @torch.inference_mode()
    def keep(self, rows: Sequence[int]) -> None:
        self._cache.keep(rows)

    def rewind(self, count: int) -> None:
        self._cache.rewind(count)
