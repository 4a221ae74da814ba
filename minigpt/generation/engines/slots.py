"""The interface of a slot engine: rows of different requests, each in a slot of one key/value cache."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from minigpt.generation.engines.engine import ModelRunner


@dataclass(frozen=True)
class Chunk:
    """Consecutive ids of one slot, the first at position `start`, of which the last `n_logits` want logits."""

    slot: int
    start: int
    ids: Sequence[int]
    n_logits: int = 1


class SlotEngine(ModelRunner, Protocol):
    """A model with a key/value cache of `n_slots` slots, each of which holds one row.

    In one call of `read`, some slots read one id and others a part of a prompt. The keys, values and logits of a slot
    have the same bits whatever the other slots read, and whichever slot it is. They depend on how its own ids are
    divided into chunks, unless `any_chunks` is true. So a caller that wants the same bits again divides the same ids in
    the same way: `chunk_size` ids at a time from position 0 on.
    """

    n_slots: int
    chunk_size: int
    any_chunks: bool

    def read(self, chunks: Sequence[Chunk]) -> list[Tensor]:
        """Reads chunks of different slots: -> for each of them its logits, (n_logits, V) float.

        Raises: ConfigError if a chunk does not fit into the context.
        """

    def save(self, slot: int, start: int, end: int) -> Tensor:
        """A copy of the keys and values of positions [start, end): (L, 2, H, end - start, D)."""

    def load(self, slot: int, start: int, saved: Tensor) -> None:
        """Writes saved keys and values, (L, 2, H, T, D), to the positions from `start` on."""
