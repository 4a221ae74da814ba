"""A model with a memory: ids in, logits of what comes next out; it knows no sampling and no text."""

from collections.abc import Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

from minigpt.errors import ConfigError
from minigpt.generation.engines import native
from minigpt.generation.engines.cuda_graphs import GraphEngine
from minigpt.generation.engines.pytorch import TorchEngine
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


def resolve_engine(model: GPT, quantization: Quantization = "none", *, compiled: bool = False) -> Engine:
    """The fastest engine for a model where it lies: decode.c for float32 on a CPU where it was built, recorded steps on
    CUDA, else plain PyTorch. `compiled` fuses the kernels of recorded steps, in about a minute.

    Raises: ConfigError for int8 without decode.c, or elsewhere than in float32 on a CPU; for `compiled` without CUDA.
    """
    on_cuda = model.token_embedding.weight.device.type == "cuda"
    if compiled and not on_cuda:
        raise ConfigError(
            f"compile is for CUDA, and the model is on {model.token_embedding.weight.device}; leave it out"
        )
    if runs_natively(model):
        return native.NativeEngine(model, quantization)
    if quantization != "none":
        weight = model.token_embedding.weight
        why = native.missing() or f"the weights are {str(weight.dtype).removeprefix('torch.')} on {weight.device}"
        raise ConfigError(f"quantize ({quantization!r}) needs float32 weights on a CPU and the compiled step; {why}")
    return GraphEngine(model, compiled=compiled) if on_cuda else TorchEngine(model)


def runs_natively(model: GPT) -> bool:
    """Whether decode.c is here and can run this model; it knows the tanh form of GELU alone."""
    if model.config.activation_function != "gelu_new":
        return False
    weight = model.token_embedding.weight
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and native.library() is not None
