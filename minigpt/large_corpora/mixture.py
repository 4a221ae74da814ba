"""Several texts with weights: which text each training sequence comes from, as a pure function of seed and number."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from minigpt.data import batches
from minigpt.errors import ConfigError
from minigpt.seeds import mix_seed

BLOCK = 10_000  # sequences in which each text has exactly its share
_LEAST_HELD_OUT = 0.5  # of all held-out parts, however small one of them is


def weighted(sources: Sequence[str]) -> list[tuple[str, float]]:
    """The texts and their weights: each source ends in one, as in web/=3.

    Raises: ConfigError for a source without a weight, and for a weight that is not a number above 0.
    """
    found = []
    for source in sources:
        text, sign, given = source.rpartition("=")
        if not sign or not text:
            raise ConfigError(f"mix (on) needs a weight for each text, as in {source.rstrip('=')}=3; {source} has none")
        try:
            weight = float(given)
        except ValueError:
            weight = math.nan
        if not (math.isfinite(weight) and weight > 0):
            raise ConfigError(f"mix: the weight of {text} is {given!r}; it must be a number above 0, as in {text}=3")
        found.append((text, weight))
    shares([weight for _, weight in found], [text for text, _ in found])
    return found


def held_out(parts: Sequence[npt.NDArray[Any]], weights: Sequence[float], end_of_text: int) -> npt.NDArray[Any]:
    """The beginnings of the held-out parts, in proportion to the weights: (N,) each -> (M,).

    A part that is much too short for its weight is taken as a whole, so that it does not make the others short. Each
    beginning ends after a document if one ends in its second half, else with an end-of-text in place of its last token.
    """
    fitting = min((len(part) / weight for part, weight in zip(parts, weights, strict=True) if len(part)), default=0.0)
    most = max(fitting, _LEAST_HELD_OUT * sum(map(len, parts)) / sum(weights))
    chosen = [np.empty(0, parts[0].dtype)]
    for part, weight in zip(parts, weights, strict=True):
        beginning = part[: math.ceil(most * weight)]
        ends = np.flatnonzero(beginning == end_of_text) + 1
        if len(ends) and ends[-1] > len(beginning) // 2:
            chosen.append(beginning[: ends[-1]])
        elif len(beginning):
            chosen.append(np.append(beginning[:-1], beginning.dtype.type(end_of_text)))
    return np.concatenate(chosen)


def shares(weights: Sequence[float], names: Sequence[str] = ()) -> tuple[int, ...]:
    """How many sequences of each block come from each text: the largest-remainder method.

    Raises: ConfigError for a weight that is too small for one.
    """
    exact = [BLOCK * weight / sum(weights) for weight in weights]
    counts = [int(each) for each in exact]
    by_remainder = sorted(range(len(exact)), key=lambda text: (counts[text] - exact[text], text))
    for text in by_remainder[: BLOCK - sum(counts)]:
        counts[text] += 1
    if 0 in counts:
        number = counts.index(0)
        what = f"the weight of {names[number]} is {weights[number]:g}" if names else f"the weight {weights[number]:g}"
        raise ConfigError(f"mix: {what}, which is too small; it must be at least 1/{BLOCK:,} of all weights together")
    return tuple(counts)


def windows(
    texts: Sequence[npt.NDArray[Any]],
    weights: Sequence[float],
    step: int,
    size: int,
    length: int,
    seed: int,
    rows: range | None = None,
    lookahead: int = 1,
) -> npt.NDArray[np.int64]:
    """`batches.windows` of several texts, (N,) each: a sequence comes from a text with a probability of its weight.

    Each text has its own epochs, so that a small text is read more often. Shapes: (B, T + lookahead).
    """
    counts = shares(weights)
    found = []
    for row in batches.select_rows(size, rows):
        block, index = divmod(step * size + row, BLOCK)
        drawn, ranks = _block(counts, block, seed)
        text = int(drawn[index])
        number = block * counts[text] + int(ranks[index])
        found.append(batches.window(texts[text], number, length, seed, lookahead))
    return np.array(found, np.int64).reshape(-1, length + lookahead)


@lru_cache(maxsize=2)
def _block(counts: tuple[int, ...], block: int, seed: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The text of each sequence of a block, and its rank among those of that text in the block. Shapes: (BLOCK,)."""
    generator = torch.Generator().manual_seed(mix_seed(~seed, block))
    drawn = np.repeat(np.arange(len(counts)), counts)[torch.randperm(BLOCK, generator=generator).numpy()]
    ranks = np.empty(BLOCK, np.int64)
    for text, count in enumerate(counts):
        ranks[drawn == text] = np.arange(count)
    return drawn, ranks
