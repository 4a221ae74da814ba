"""The interface of an engine: a model with a key/value cache that maps token ids to logits."""

import threading
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from minigpt.model.gpt import GPT


class ModelRunner(Protocol):
    """What every engine says of itself."""

    @property
    def model(self) -> GPT:
        """The model that the engine runs."""

    @property
    def description(self) -> str:
        """The device, the dtype and the implementation, in a few words."""

    @property
    def device(self) -> torch.device:
        """The device of the logits."""

    @property
    def n_positions(self) -> int:
        """The context length: the largest number of ids in one row."""


class Engine(ModelRunner, Protocol):
    """A model with a key/value cache, on which generation runs.

    An engine processes several rows at once. The logits of each row are those of the row alone.
    V is the model's vocabulary size, which may exceed the tokenizer's because of padding.

    Several texts may use one engine in turns, also from several threads; see `SharedCache` for `lock` and `n_starts`.
    """

    lock: threading.RLock
    n_starts: int

    @property
    def length(self) -> int:
        """The number of ids in the longest row."""

    def start(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Clears the cache and reads one prompt per row, of any length: -> (B, V), the next token's logits.

        Raises: ConfigError if a prompt is longer than the context.
        """

    def read(self, ids: Tensor) -> Tensor:
        """Reads the next T ids of every row: (B, T) int64 -> (B, T, V), the logits after each id.

        Raises: ConfigError if they do not fit into the context.
        """

    def keep(self, rows: Sequence[int]) -> None:
        """Keeps these rows, in this order; a row may appear several times."""

    def rewind(self, count: int) -> None:
        """Drops the last `count` ids of every row."""


class SharedCache:
    """The part of an engine that lets several callers use its key/value cache in turns.

    A caller holds `lock` during its turn. `n_starts` is the number of calls of `start`. If it has changed since the
    caller's own `start`, the cache holds the text of another caller, and the caller must start again.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.n_starts = 0
