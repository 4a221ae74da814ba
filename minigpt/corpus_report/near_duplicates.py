"""Finds units of a text that are nearly the same, by MinHash, and shows the first difference of two of them.

In a random order, two sets have the same smallest element with the probability of their Jaccard similarity. So the
fraction of equal minima over many orders estimates it. Only pairs that agree in a whole band of minima are compared.
Source: Broder 1997; Leskovec et al., Mining of Massive Datasets, 3.4.
"""

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
import numpy.typing as npt

from minigpt.corpus_report.units import Unit
from minigpt.memorization.words import UNIT, has_spaceless, split

SHINGLE = 5  # words, or characters of scripts without spaces
MIN_SIMILARITY = 0.8  # Jaccard similarity of the shingles of two near-duplicates

_MIN_WORDS = 20  # of a unit that is compared
_MOST_SIGNATURES = 2**17  # 32 MB
_HASHES, _BANDS = 64, 16  # bands of four: of two texts with a similarity of 0.8, 99.98 % share one
_MOST_SHINGLES = 20_000  # of one unit
_WORDS_BEFORE, _WORDS_AFTER = 6, 10  # shown around a difference
_MOST_LINE = 1000  # characters of a line, on each side of a difference, that are searched for in its file
_RANDOM = np.random.default_rng(64)
_FACTORS = _RANDOM.integers(0, 2**63, (_HASHES, 1), dtype=np.uint64) * 2 + 1
_TERMS = _RANDOM.integers(0, 2**64, (_HASHES, 1), dtype=np.uint64)
_BAND_FACTORS = _RANDOM.integers(0, 2**63, _HASHES // _BANDS, dtype=np.uint64) * 2 + 1
_SHINGLE_FACTORS = _RANDOM.integers(0, 2**63, SHINGLE, dtype=np.uint64) * 2 + 1

Signature = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class NearDuplicateStats:
    """How many of the compared units nearly repeat an earlier one.

    `examples` are the hashes of the most similar pair, or none, with which `find_examples` finds their texts again;
    `similarity` is the estimated Jaccard similarity of that pair.
    """

    kind: str
    units: int
    duplicates: int
    sampled_fraction: float
    examples: tuple[int, ...]
    similarity: float


@dataclass(frozen=True)
class Excerpt:
    """A text around its first difference from another: the words to show, and the line to find it in its file."""

    words: str
    line: str


class NearDuplicateFinder:
    """Compares units of one kind in bounded memory.

    With too many units, it samples them by the first minimum of their signatures, which near-duplicates mostly share.
    """

    def __init__(self, kind: str) -> None:
        self.kind, self.halvings = kind, 0
        self.units: list[tuple[int, Signature]] = []  # the hash and the signature of each

    def add(self, unit: Unit) -> None:
        shingles = _shingles(unit.text)
        if shingles is None:
            return
        signature = _signature(shingles)
        if not int(signature[0]) % (1 << self.halvings):
            self.units.append((unit.hash, signature))
        if len(self.units) > _MOST_SIGNATURES:
            self.halvings += 1
            self.units = [each for each in self.units if not int(each[1][0]) % (1 << self.halvings)]

    def result(self) -> NearDuplicateStats:
        pairs = _similar_pairs(self.units)
        similarity, left, right = max(pairs, default=(0.0, 0, 0), key=lambda pair: (pair[0], -pair[1]))
        return NearDuplicateStats(
            kind=self.kind,
            units=len(self.units),
            duplicates=len({right for _, _, right in pairs}),
            sampled_fraction=0.5**self.halvings,
            examples=(self.units[left][0], self.units[right][0]) if pairs else (),
            similarity=similarity,
        )


def first_difference(left: str, right: str) -> tuple[Excerpt, Excerpt]:
    """The excerpts around the first word in which two texts differ, or their beginnings if no word differs."""
    matches = [list(UNIT.finditer(text)) for text in (left, right)]
    pairs = enumerate(zip_longest(*([match[0] for match in words] for words in matches)))
    index = next((index for index, (one, other) in pairs if one != other), 0)
    return _excerpt(left, matches[0], index), _excerpt(right, matches[1], index)


def _excerpt(text: str, words: Sequence[re.Match[str]], index: int) -> Excerpt:
    """The excerpt around a word; `index` may be one past the last word."""
    around = words[max(0, index - _WORDS_BEFORE) : index + _WORDS_AFTER]
    shown = " ".join(text[around[0].start() : around[-1].end()].split())
    position = words[min(index, len(words) - 1)].start()
    start, end = text.rfind("\n", 0, position) + 1, text.find("\n", position)
    line = text[max(start, position - _MOST_LINE) : min(len(text) if end < 0 else end, position + _MOST_LINE)]
    front, back = "… " * (index > _WORDS_BEFORE), " …" * (index + _WORDS_AFTER < len(words))
    return Excerpt(f"{front}{shown}{back}", line.strip())


def _shingles(text: bytes) -> npt.NDArray[np.uint64] | None:
    """The hashes of a text's runs of SHINGLE words, ignoring case; None if it has too few words.

    In scripts without spaces, every character is a word.
    """
    words = text.lower().split(maxsplit=_MOST_SHINGLES)[:_MOST_SHINGLES]
    if not text.isascii() and has_spaceless(decoded := text.lower().decode()):
        words = [word.encode() for word in split(decoded)[:_MOST_SHINGLES]]
    if len(words) < _MIN_WORDS:
        return None
    codes = np.fromiter(map(zlib.crc32, words), dtype=np.uint64, count=len(words))
    count = len(words) - SHINGLE + 1
    mixed = sum((codes[i : i + count] * _SHINGLE_FACTORS[i] for i in range(SHINGLE)), np.zeros(count, np.uint64))
    return mixed ^ (mixed >> np.uint64(29))


def _signature(shingles: npt.NDArray[np.uint64]) -> Signature:
    """The minimum of the shingles in each random order. Shapes: (_HASHES,)."""
    return ((_FACTORS * shingles + _TERMS) >> np.uint64(32)).min(axis=1).astype(np.uint32)


def _similar_pairs(units: Sequence[tuple[int, Signature]]) -> list[tuple[float, int, int]]:
    """The similarity and indices of near-duplicates that are adjacent when sorted by some band."""
    if not units:
        return []
    signatures = np.stack([signature for _, signature in units])
    bands = (signatures.reshape(len(units), _BANDS, -1) * _BAND_FACTORS).sum(axis=-1)  # (N, bands), a hash of each
    candidates: set[tuple[int, int]] = set()
    for band in bands.T:
        order = np.argsort(band, kind="stable")
        same = band[order[1:]] == band[order[:-1]]
        candidates.update(zip(order[:-1][same].tolist(), order[1:][same].tolist(), strict=True))
    pairs = []
    for left, right in candidates:
        similarity = float((signatures[left] == signatures[right]).mean())
        if similarity >= MIN_SIMILARITY and units[left][0] != units[right][0]:
            pairs.append((similarity, left, right))
    return pairs
