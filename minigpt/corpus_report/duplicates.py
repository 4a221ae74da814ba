"""Finds documents, paragraphs and lines that occur more than once in a text, by their hashes.

In a text of more than 8 million units, duplicates are estimated from a sample of the units by hash. A few units may be
most of the duplicates, which a sample misses or multiplies: these are counted without sampling.
"""

from array import array
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from minigpt.corpus_report.locations import Location
from minigpt.corpus_report.near_duplicates import NearDuplicateFinder, NearDuplicateStats
from minigpt.corpus_report.units import Unit, read_units
from minigpt.data.sources import Piece

_MOST_UNITS = 2**23  # of one kind, 128 MB; beyond, only every second unit is sampled, then every fourth, ...
_HEAVY = 2**-9  # of the bytes of all units: a unit whose occurrences have more is counted without sampling
_MANY_DOCUMENTS = 20  # from which on near-duplicates are documents, not paragraphs


@dataclass(frozen=True)
class DuplicateStats:
    """The duplicates among a text's units of one kind: the units that repeat an earlier one.

    Units: `duplicate_bytes` UTF-8 bytes that would be removed if every unit were kept once. `sampled_fraction` is the
    fraction of the different units that were counted; below 1, `duplicates` and `duplicate_bytes` are estimates for
    the whole text. `example_hash` is that of the unit with the most bytes in duplicates, with which `find_examples`
    finds it again; `occurrences` is how often it occurs, at least. `example` is a line of it, with up to two
    `locations`.
    """

    kind: str
    units: int
    duplicates: int
    duplicate_bytes: int
    sampled_fraction: float
    example_hash: int | None
    occurrences: int
    example: str = ""
    locations: tuple[Location, ...] = ()


class _DuplicateCounter:
    """Counts the units of one kind in bounded memory.

    With too many, it keeps only those with a hash that ends in zeros, so that all occurrences of a unit stay, and the
    number of those that are heavy so far.
    """

    def __init__(self, kind: str) -> None:
        self.kind, self.halvings, self.units, self.bytes = kind, 0, 0, 0
        self._hashes, self._sizes = array("Q"), array("Q")
        self._heavy: dict[int, list[int]] = {}  # the occurrences and the size of each

    def add(self, unit: Unit) -> None:
        self.units += 1
        self.bytes += unit.size
        if (heavy := self._heavy.get(unit.hash)) is not None:
            heavy[0] += 1
        elif not unit.hash & self._mask:
            self._hashes.append(unit.hash)
            self._sizes.append(unit.size)
            if len(self._hashes) > _MOST_UNITS:
                self._sample()

    @property
    def _mask(self) -> int:
        return (1 << self.halvings) - 1

    def _sample(self) -> None:
        hashes, occurrences, sizes = self._counted()
        heavy = occurrences * sizes > _HEAVY * self.bytes
        rows = zip(*(each[heavy].tolist() for each in (hashes, occurrences, sizes)), strict=True)
        self._heavy |= {key: [count, size] for key, count, size in rows}
        kept = ~np.isin(np.array(self._hashes), hashes[heavy])
        while kept.sum() > _MOST_UNITS // 2:
            self.halvings += 1
            kept &= np.array(self._hashes) & np.uint64(self._mask) == 0
        self._hashes = array("Q", np.array(self._hashes)[kept].tobytes())
        self._sizes = array("Q", np.array(self._sizes)[kept].tobytes())

    def _counted(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
        """The hash, the occurrences and the size of each unit that is sampled."""
        hashes, first, occurrences = np.unique(np.array(self._hashes), return_index=True, return_counts=True)
        return hashes, occurrences, np.array(self._sizes)[first].astype(np.int64)

    def result(self) -> DuplicateStats:
        hashes, occurrences, sizes = self._counted()
        fraction = 0.5**self.halvings
        heavy = np.array(list(self._heavy.values()), np.int64).reshape(-1, 2)
        weights = np.append(np.full(len(hashes), 1 / fraction), np.ones(len(heavy)))
        hashes = np.append(hashes, np.array(list(self._heavy), np.uint64))
        occurrences, sizes = np.append(occurrences, heavy[:, 0]), np.append(sizes, heavy[:, 1])
        duplicate_bytes = (occurrences - 1) * sizes
        worst = int(duplicate_bytes.argmax()) if duplicate_bytes.any() else None
        return DuplicateStats(
            kind=self.kind,
            units=self.units,
            duplicates=min(round(float(weights @ (occurrences - 1))), self.units),
            duplicate_bytes=min(round(float(weights @ duplicate_bytes)), self.bytes),
            sampled_fraction=fraction,
            example_hash=None if worst is None else int(hashes[worst]),
            occurrences=0 if worst is None else int(occurrences[worst]),
        )


def find_duplicates(pieces: Iterable[Piece], n_documents: int) -> tuple[list[DuplicateStats], NearDuplicateStats]:
    """Finds the duplicates and near-duplicates of a text with `n_documents` documents.

    Near-duplicates are searched among the documents if there are 20 or more, otherwise among the paragraphs.
    """
    counters = {kind: _DuplicateCounter(kind) for kind in ("documents", "paragraphs", "lines")}
    near = NearDuplicateFinder("documents" if n_documents >= _MANY_DOCUMENTS else "paragraphs")
    for unit in read_units(pieces):
        counters[unit.kind].add(unit)
        if unit.kind == near.kind:
            near.add(unit)
    return [counter.result() for counter in counters.values()], near.result()


def find_examples(pieces: Iterable[Piece], hashes: Collection[int]) -> dict[int, str]:
    """Reads a text again to find the units with these hashes; of a document, the first 200 kB."""
    texts: dict[int, str] = {}
    for unit in read_units(pieces) if hashes else ():
        if unit.hash in hashes:
            texts.setdefault(unit.hash, unit.text.decode(errors="ignore"))
            if len(texts) == len(hashes):
                break
    return texts
