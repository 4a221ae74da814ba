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


def inputs_and_targets(sequences: npt.NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """All tokens but the last, and all but the first: (B, T + 1) -> (B, T) int64 twice."""
    tokens = torch.from_numpy(sequences)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def add_noise(
    inputs: Tensor, noise: float, vocab_size: int, step: int, size: int, seed: int, rows: range | None = None
) -> Tensor:
    """The inputs of some rows of a step, each token replaced with probability `noise` by a uniformly random id below
    `vocab_size`. The replaced tokens differ in every step, so that every epoch reads a window differently.

    Shapes: (B, T) -> (B, T).
    Source: Xie et al. 2017, "Data noising as smoothing in neural network language models", section 3.1, with a random
    token in place of the blank.
    """
    length, selected = inputs.shape[1], list(select_rows(size, rows))
    generator = torch.Generator().manual_seed(mix_seed(seed, step, size))
    replaced = (torch.rand(size, length, generator=generator) < noise)[selected]  # (B, T)
    drawn = torch.randint(vocab_size, (size, length), generator=generator)[selected]  # (B, T)
    return torch.where(replaced, drawn, inputs)


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
