"""Several texts with weights: which text each training sequence comes from, as a pure function of seed and number."""

import math
import os
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from minigpt.config import ReadingConfig
from minigpt.data import batches
from minigpt.data.sources import Scan, scan
from minigpt.errors import ConfigError
from minigpt.seeds import mix_seed

BLOCK = 10_000  # sequences in which each text has exactly its share


def weighted(sources: Sequence[str]) -> list[tuple[str, float]]:
    """The texts and their weights: each source ends in one, as in web/=3.

    Raises: ConfigError for a source without a weight, and for a weight that is not a number above 0.
    """
    found = []
    for source in sources:
        text, sign, given = source.rpartition("=")
        if not sign or not text:
            raise ConfigError(f"mix needs a weight for each text, as in {source.rstrip('=')}=3; {source} has none")
        try:
            weight = float(given)
        except ValueError:
            weight = math.nan
        if not (math.isfinite(weight) and weight > 0):
            raise ConfigError(f"mix: the weight of {text} is {given!r}; it must be a number above 0, as in {text}=3")
        found.append((text, weight))
    return found


class Texts(NamedTuple):
    """Some texts, and their weights in a mixture; one text has none."""

    scans: list[Scan]
    weights: tuple[float, ...]


def scan_texts(sources: Sequence[str], reading: ReadingConfig, cache: Path | None = None) -> Texts:
    """Scans the sources as one text or, with `mix`, each as a text with a weight; see `scan` for `cache`.

    Raises: DataError, ConfigError as `scan` and `weighted`; ConfigError for a file in two texts of a mixture, unless
    equal documents are dropped.
    """
    pairs = weighted(sources) if reading.mix else []
    seen: set[bytes] | None = set() if reading.deduplicate else None
    read = partial(
        scan, text_key=reading.text_key, encoding=reading.encoding, encoding_errors=reading.encoding_errors, seen=seen,
        cache=cache,
    )  # fmt: skip
    scans = [read(text) for text, _ in pairs] if pairs else [read(list(sources))]
    if seen is None:
        _check_separate(scans)
    return Texts(scans, tuple(weight for _, weight in pairs))


def _check_separate(texts: Sequence[Scan]) -> None:
    """Raises ConfigError for a file in two texts: documents that are held out of one would be trained on in another."""
    known: set[str] = set()
    for text in texts:
        paths = [os.path.realpath(file.path) for file in text.files]
        for file, path in zip(text.files, paths, strict=True):
            if path in known:
                raise ConfigError(
                    f"mix: {file.name} is in two texts, so its held-out documents would be trained on; remove it from "
                    "one of them, or add --deduplicate"
                )
        known.update(paths)


def held_out(parts: Sequence[npt.NDArray[Any]], weights: Sequence[float], end_of_text: int) -> npt.NDArray[Any]:
    """Whole documents from the start of each held-out part, as many as its weight allows: (N,) each -> (M,)."""
    most = min(len(part) / weight for part, weight in zip(parts, weights, strict=True))
    chosen = []
    for part, weight in zip(parts, weights, strict=True):
        ends = np.flatnonzero(part[: math.ceil(most * weight)] == end_of_text) + 1
        chosen.append(part[: ends[-1] if len(ends) else 0])
    return np.concatenate(chosen)


def shares(weights: Sequence[float]) -> tuple[int, ...]:
    """How many sequences of each block come from each text: the largest-remainder method.

    Raises: ConfigError for a weight that is too small for one.
    """
    exact = [BLOCK * weight / sum(weights) for weight in weights]
    counts = [int(each) for each in exact]
    by_remainder = sorted(range(len(exact)), key=lambda text: (counts[text] - exact[text], text))
    for text in by_remainder[: BLOCK - sum(counts)]:
        counts[text] += 1
    if 0 in counts:
        weight = weights[counts.index(0)]
        raise ConfigError(f"mix ({weight:g}) is too small a weight: it must be at least 1/{BLOCK:,} of all together")
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
    return np.stack(found)


@lru_cache(maxsize=2)
def _block(counts: tuple[int, ...], block: int, seed: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The text of each sequence of a block, and its rank among those of that text in the block. Shapes: (BLOCK,)."""
    generator = torch.Generator().manual_seed(mix_seed(~seed, block))
    drawn = np.repeat(np.arange(len(counts)), counts)[torch.randperm(BLOCK, generator=generator).numpy()]
    ranks = np.empty(BLOCK, np.int64)
    for text, count in enumerate(counts):
        ranks[drawn == text] = np.arange(count)
    return drawn, ranks
