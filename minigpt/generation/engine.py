"""The engine that runs wherever PyTorch runs, which is also the interface of the other engines."""

import threading
from collections.abc import Sequence

import torch
from torch import Tensor

from minigpt.device import to_device
from minigpt.model.attention import check_length
from minigpt.model.gpt import GPT
from minigpt.model.kv_cache import KVCache
from minigpt.threads import watch_load


class ModelRunner:
    """A model and its key/value cache of `rows` rows.

    With `any_chunks`, logits have the same bits however the ids of a text are divided into calls of `read`.
    """

    implementation = "PyTorch"
    any_chunks = False

    def __init__(self, model: GPT, rows: int) -> None:
        self.model = model
        self.device = model.token_embedding.weight.device  # of the logits
        self.cache = self._new_cache(rows)

    def _new_cache(self, rows: int) -> KVCache:
        weight = self.model.token_embedding.weight
        return KVCache(self.model.config, rows, device=weight.device, dtype=weight.dtype)

    @property
    def description(self) -> str:
        """The device, the dtype and the implementation, in a few words."""
        weight = self.model.token_embedding.weight
        return f"{weight.device}, {str(weight.dtype).removeprefix('torch.')}, {self.implementation}"

    @property
    def slow_because(self) -> str:
        """A sentence on what makes it slower than it could be on this machine; else empty."""
        return ""

    @property
    def n_positions(self) -> int:
        """The context length: the largest number of ids in one row."""
        return self.model.config.n_positions


class Engine(ModelRunner):
    """A model with a key/value cache, on which generation runs; here by the model's own forward pass.

    An engine processes several rows at once. The logits of each row are those of the row alone.
    V is the model's vocabulary size, which may exceed the tokenizer's because of padding.

    Several texts may use one engine in turns, also from several threads. A caller holds `lock` during its turn.
    `n_starts` is the number of calls of `start`. If it has changed since the caller's own `start`, the cache holds the
    text of another caller, and the caller must start again.
    """

    def __init__(self, model: GPT) -> None:
        super().__init__(model, 0)
        self.lock = threading.RLock()
        self.n_starts = 0
        if self.device.type == "cpu":
            watch_load()

    def use_cache(self, cache: KVCache) -> None:
        """Uses this cache from now on."""
        self.cache = cache

    def _provide_rows(self, rows: int) -> None:
        """Makes the cache one of so many rows."""
        if self.cache.batch_size != rows:
            self.use_cache(self._new_cache(0))  # frees the old cache before the new one is allocated
            self.use_cache(self._new_cache(rows))

    @property
    def length(self) -> int:
        """The number of ids in the longest row."""
        return self.cache.length

    @torch.inference_mode()
    def start(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Clears the cache and reads one prompt per row, of any length: -> (B, V), the next token's logits.

        Raises: ConfigError if a prompt is longer than the context.
        """
        self.n_starts += 1
        longest = max(len(prompt) for prompt in prompts)
        check_length(longest, self.n_positions)
        self._provide_rows(len(prompts))
        self.cache.reset()
        padding = [longest - len(prompt) for prompt in prompts]  # on the left, so that the prompts end together
        ids = [[0] * pad + list(prompt) for pad, prompt in zip(padding, prompts, strict=True)]
        if any(padding):
            self.cache.padding = to_device(torch.tensor(padding), self.device)  # (B,)
        return self.model.logits(self.model.last_features(to_device(torch.tensor(ids), self.device), self.cache))

    @torch.inference_mode()
    def read(self, ids: Tensor) -> Tensor:
        """Reads the next T ids of every row: (B, T) int64 -> (B, T, V), the logits after each id.

        Raises: ConfigError if they do not fit into the context.
        """
        return self.model.logits(self.model.features(ids, self.cache))

    @torch.inference_mode()
    def keep(self, rows: Sequence[int]) -> None:
        """Keeps these rows, in this order; a row may appear several times."""
        self.cache.keep(rows)

    def rewind(self, count: int) -> None:
        """Drops the last `count` ids of every row."""
        self.cache.rewind(count)
