"""Batches as a pure function of the seed and the step; it knows neither files nor ranks nor how a run resumes."""

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from minigpt.device import mix_seed


def windows_per_epoch(n_tokens: int, length: int) -> int:
    """How many sequences of `length` tokens one pass over the tokens is; at least one, which then wraps around."""
    return max(1, n_tokens // length)


def batch(
    tokens: npt.NDArray[Any],
    step: int,
    size: int,
    length: int,
    seed: int,
    rows: slice | range | None = None,
    noise: float = 0.0,
    vocab_size: int = 0,
) -> tuple[Tensor, Tensor]:
    """The inputs of one step, and the targets, which are the inputs moved on by one token.

    The tokens are a ring: their last is an end of text, so that going on with the first is one more border between
    documents. An epoch lays windows of `length` end to end on the ring from a random start, and visits each once in a
    random order. Sequences are counted through all steps, so that the step alone tells which epoch and window each is,
    and `rows` picks those of one rank or one micro-batch.

    A share `noise` of the inputs, but of no targets, is replaced by any of the first `vocab_size` ids, all as likely:
    by others each time a window comes round, so that it is never read the same way twice.

    Shapes: (B, T) int64 each, B the number of rows, T = length.
    Source: Xie et al. 2017, "Data noising as smoothing in neural network language models", section 3.1, with
    any word for the blank.
    """
    picked = range(size) if rows is None else range(size)[rows] if isinstance(rows, slice) else rows
    windows = windows_per_epoch(len(tokens), length)
    starts = np.empty(len(picked), dtype=np.int64)
    for place, row in enumerate(picked):
        epoch, turn = divmod(step * size + row, windows)
        offset, order = _epoch(len(tokens), length, seed, epoch)
        starts[place] = offset + order[turn] * length
    positions = (starts[:, None] + np.arange(length + 1)) % len(tokens)  # (B, T + 1)
    sequences = torch.from_numpy(tokens[positions].astype(np.int64))  # (B, T + 1)
    inputs, targets = sequences[:, :-1].contiguous(), sequences[:, 1:].contiguous()  # (B, T) each
    if noise:
        generator = torch.Generator().manual_seed(mix_seed(seed, step, size))
        replaced = (torch.rand(size, length, generator=generator) < noise)[list(picked)]  # (B, T)
        drawn = torch.randint(vocab_size, (size, length), generator=generator)[list(picked)]  # (B, T)
        inputs = torch.where(replaced, drawn, inputs)
    return inputs, targets


@lru_cache(maxsize=4)
def _epoch(n_tokens: int, length: int, seed: int, epoch: int) -> tuple[int, npt.NDArray[np.int64]]:
    """Where an epoch's first window starts on the ring, and the order in which its windows are visited."""
    generator = torch.Generator().manual_seed(mix_seed(seed, epoch))
    offset = int(torch.randint(n_tokens, (), generator=generator))
    return offset, torch.randperm(windows_per_epoch(n_tokens, length), generator=generator).numpy()
