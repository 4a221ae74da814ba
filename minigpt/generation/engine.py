"""A model with a memory: ids in, logits of what comes next out; it knows no sampling and no text."""

from collections.abc import Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

from minigpt.errors import ConfigError
from minigpt.generation import native
from minigpt.model.attention import KVCache
from minigpt.model.gpt import GPT


class Engine(Protocol):
    """What generation runs on. Several rows are read side by side; each is what it would be alone.

    V is the model's vocabulary, which may be padded beyond the tokenizer's.
    """

    @property
    def model(self) -> GPT:
        """The model that is run."""

    @property
    def description(self) -> str:
        """Where and how it runs, in a few words."""

    @property
    def device(self) -> torch.device:
        """Where logits come out."""

    @property
    def n_positions(self) -> int:
        """The context length: the most ids of one row."""

    @property
    def length(self) -> int:
        """The ids that the longest row has read."""

    def start(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Forgets everything and reads one prompt per row, each of any length: -> (B, V) logits of what comes next.

        Raises: ConfigError for a prompt beyond the context.
        """

    def read(self, ids: Tensor) -> Tensor:
        """Reads the next T ids of every row: (B, T) int64 -> (B, T, V), the logits behind each.

        Raises: ConfigError where they do not fit into the context.
        """

    def keep(self, rows: Sequence[int]) -> None:
        """Goes on with these rows, in this order; a row may go on as several."""

    def rewind(self, count: int) -> None:
        """Forgets the last `count` ids of every row."""


Quantization = Literal["none", "int8"]


def resolve_engine(model: GPT, quantization: Quantization = "none") -> Engine:
    """The fastest engine for a model where it lies: decode.c for float32 on a CPU where it was built, else PyTorch.

    Raises: ConfigError for int8 without decode.c, or elsewhere than in float32 on a CPU.
    """
    if runs_natively(model):
        return native.NativeEngine(model, quantization)
    if quantization != "none":
        weight = model.token_embedding.weight
        why = (
            "minigpt was installed without a C compiler at hand: install gcc or clang, then minigpt again"
            if native.library() is None
            else f"the weights are {str(weight.dtype).removeprefix('torch.')} on {weight.device}"
        )
        raise ConfigError(f"quantize ({quantization!r}) needs float32 weights on a CPU and the compiled step; {why}")
    return TorchEngine(model)


def runs_natively(model: GPT) -> bool:
    """Whether decode.c is here and can run this model."""
    weight = model.token_embedding.weight
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and native.library() is not None


class TorchEngine:
    """The engine that runs everywhere torch does: the model's own forward pass with a cache.

    Rows of different lengths are padded on the left, so that they end together.
    """

    def __init__(self, model: GPT) -> None:
        self.model = model
        self._cache = self._new_cache(0)

    def _new_cache(self, rows: int) -> KVCache:
        weight = self.model.token_embedding.weight
        return KVCache(self.model.config, rows, device=weight.device, dtype=weight.dtype)

    @property
    def description(self) -> str:
        weight = self.model.token_embedding.weight
        return f"{weight.device}, {str(weight.dtype).removeprefix('torch.')}, PyTorch"

    @property
    def device(self) -> torch.device:
        return self.model.token_embedding.weight.device

    @property
    def n_positions(self) -> int:
        return self.model.config.n_positions

    @property
    def length(self) -> int:
        return self._cache.length

    @torch.inference_mode()
    def start(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        longest = max(len(prompt) for prompt in prompts)
        if len(self._cache.keys[0]) == len(prompts):
            self._cache.reset()
        else:
            self._cache = self._new_cache(len(prompts))
        padding = [longest - len(prompt) for prompt in prompts]
        ids = [[0] * pad + list(prompt) for pad, prompt in zip(padding, prompts, strict=True)]
        if any(padding):
            self._cache.padding = torch.tensor(padding, device=self.device)  # (B,)
        features = self.model.features(torch.tensor(ids, device=self.device), self._cache)  # (B, T, C)
        return self.model.logits(features[:, -1])

    @torch.inference_mode()
    def read(self, ids: Tensor) -> Tensor:
        return self.model.logits(self.model.features(ids, self._cache))

    @torch.inference_mode()
    def keep(self, rows: Sequence[int]) -> None:
        self._cache.keep(rows)

    def rewind(self, count: int) -> None:
        self._cache.rewind(count)
