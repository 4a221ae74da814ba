"""Training batches as a pure function of the seed and the step."""

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from minigpt.seeds import mix_seed

UNSCORED = -100  # the target of a position that is not scored, as in torch's cross_entropy


def windows_per_epoch(n_tokens: int, length: int) -> int:
    """The number of windows of `length` tokens in one pass over the tokens; at least 1, which then wraps around."""
    return max(1, n_tokens // length)


def windows(
    tokens: npt.NDArray[Any],
    step: int,
    size: int,
    length: int,
    seed: int,
    rows: range | None = None,
    lookahead: int = 1,
) -> npt.NDArray[np.int64]:
    """The windows of one step, each followed by `lookahead` tokens, of which the first is the target of its last token.

    The tokens form a ring: the last one is an end-of-text, so that the first one begins another document. Each epoch
    places windows of `length` end to end on the ring from a random start, and visits each once in random order.
    Sequences are numbered across all steps, so that the step alone determines the epoch and window of each. `rows`
    selects those of one rank or one micro-batch.

    Shapes: (B, T + lookahead), B the number of rows, T = length.
    """
    starts = [_start(len(tokens), step * size + row, length, seed) for row in select_rows(size, rows)]
    positions = (np.array(starts, int)[:, None] + np.arange(length + lookahead)) % len(tokens)  # (B, T + lookahead)
    return tokens[positions].astype(np.int64)


def window(tokens: npt.NDArray[Any], number: int, length: int, seed: int, lookahead: int = 1) -> npt.NDArray[np.int64]:
    """The window of one sequence, by its number across all steps. Shapes: (T + lookahead,)."""
    positions = (_start(len(tokens), number, length, seed) + np.arange(length + lookahead)) % len(tokens)
    return tokens[positions].astype(np.int64)


def inputs_and_targets(
    sequences: npt.NDArray[np.int64], scored: npt.NDArray[np.bool_] | None = None
) -> tuple[Tensor, Tensor]:
    """All tokens but the last, and all but the first: (B, T + 1) -> (B, T) int64 twice.

    Targets that are not `scored` (B, T + 1) are UNSCORED.
    """
    tokens = torch.from_numpy(sequences)
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    if scored is not None:
        targets = targets.masked_fill(torch.from_numpy(~scored[:, 1:]), UNSCORED)  # the two may share memory
    return inputs, targets


def select_rows(size: int, rows: range | None) -> range:
    """The numbers of these rows of a batch of `size`; None means all."""
    return range(size) if rows is None else rows


def _start(n_tokens: int, number: int, length: int, seed: int) -> int:
    """Where the window of a sequence starts on the ring."""
    epoch, index = divmod(number, windows_per_epoch(n_tokens, length))
    offset, order = _epoch(n_tokens, length, seed, epoch)
    return offset + int(order[index]) * length


@lru_cache(maxsize=4)
def _epoch(n_tokens: int, length: int, seed: int, epoch: int) -> tuple[int, npt.NDArray[np.int64]]:
    """Where an epoch's first window starts on the ring, and the random order of its windows."""
    generator = torch.Generator().manual_seed(mix_seed(seed, epoch))
    offset = int(torch.randint(n_tokens, (), generator=generator))
    return offset, torch.randperm(windows_per_epoch(n_tokens, length), generator=generator).numpy()
