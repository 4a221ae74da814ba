"""Batches as a pure function of the seed and the step; it knows neither files nor ranks nor how a run resumes."""

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from minigpt.seeds import mix_seed


def windows_per_epoch(n_tokens: int, length: int) -> int:
    """How many sequences of `length` tokens one pass over the tokens is; at least one, which then wraps around."""
    return max(1, n_tokens // length)


def windows(
    tokens: npt.NDArray[Any],
    step: int,
    size: int,
    length: int,
    seed: int,
    rows: slice | range | None = None,
    ahead: int = 1,
) -> npt.NDArray[np.int64]:
    """The windows of one step, each with the tokens `ahead` of it, the first of which is what its last one predicts.

    The tokens are a ring: their last is an end of text, so that going on with the first is one more border between
    documents. An epoch lays windows of `length` end to end on the ring from a random start, and visits each once in a
    random order. Sequences are counted through all steps, so that the step alone tells which epoch and window each is,
    and `rows` picks those of one rank or one micro-batch.

    Shapes: (B, T + ahead), B the number of rows, T = length.
    """
    picked = picked_rows(size, rows)
    per_epoch = windows_per_epoch(len(tokens), length)
    starts = np.empty(len(picked), dtype=np.int64)
    for place, row in enumerate(picked):
        epoch, turn = divmod(step * size + row, per_epoch)
        offset, order = _epoch(len(tokens), length, seed, epoch)
        starts[place] = offset + order[turn] * length
    positions = (starts[:, None] + np.arange(length + ahead)) % len(tokens)  # (B, T + ahead)
    return tokens[positions].astype(np.int64)


def batch(
    tokens: npt.NDArray[Any], step: int, size: int, length: int, seed: int, rows: slice | range | None = None
) -> tuple[Tensor, Tensor]:
    """The inputs of one step, and the targets, which are the inputs moved on by one token: (B, T) int64 each."""
    return inputs_and_targets(windows(tokens, step, size, length, seed, rows))


def inputs_and_targets(sequences: npt.NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """All tokens but the last, and all but the first: (B, T + 1) -> (B, T) int64 twice."""
    whole = torch.from_numpy(sequences)
    return whole[:, :-1].contiguous(), whole[:, 1:].contiguous()


def noised(
    inputs: Tensor, share: float, vocab_size: int, step: int, size: int, seed: int, rows: slice | range | None = None
) -> Tensor:
    """The inputs of some rows of a step, of which a `share` is replaced by any of the first `vocab_size` ids, all as
    likely: by others each time a window comes round, so that it is never read the same way twice.

    Shapes: (B, T) -> (B, T).
    Source: Xie et al. 2017, "Data noising as smoothing in neural network language models", section 3.1, with
    any word for the blank.
    """
    length, picked = inputs.shape[1], list(picked_rows(size, rows))
    generator = torch.Generator().manual_seed(mix_seed(seed, step, size))
    replaced = (torch.rand(size, length, generator=generator) < share)[picked]  # (B, T)
    drawn = torch.randint(vocab_size, (size, length), generator=generator)[picked]  # (B, T)
    return torch.where(replaced, drawn, inputs)


def picked_rows(size: int, rows: slice | range | None) -> range:
    """Which of a batch's rows these are: all of them where nothing is picked."""
    return range(size) if rows is None else range(size)[rows] if isinstance(rows, slice) else rows


@lru_cache(maxsize=4)
def _epoch(n_tokens: int, length: int, seed: int, epoch: int) -> tuple[int, npt.NDArray[np.int64]]:
    """Where an epoch's first window starts on the ring, and the order in which its windows are visited."""
    generator = torch.Generator().manual_seed(mix_seed(seed, epoch))
    offset = int(torch.randint(n_tokens, (), generator=generator))
    return offset, torch.randperm(windows_per_epoch(n_tokens, length), generator=generator).numpy()
