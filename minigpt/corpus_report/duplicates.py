"""Finds documents, paragraphs and lines that occur more than once in a text, by their hashes.

In a large text, duplicates are estimated from a sample of the units by hash. A few units may be most of the duplicates,
which a sample misses or multiplies: these heavy hitters are found and counted without sampling.
Sources: Misra & Gries 1982; Anderson et al. 2017, A High-Performance Algorithm for Identifying Frequent Items.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from minigpt.corpus_report.near_duplicates import NearDuplicateFinder, NearDuplicateStats
from minigpt.corpus_report.units import Unit, read_units
from minigpt.data.sources import Piece

_MOST_HASHES = 2**19  # of one kind; beyond, only every second unit is sampled, then every fourth, ...
_MOST_HEAVY = 2**12  # units of one kind that are counted without sampling
_LEAST_HEAVY = 8  # times what such a count may miss
_EXAMPLE_LENGTH = 160  # characters
_MANY_DOCUMENTS = 20  # from which on near-duplicates are documents, not paragraphs


@dataclass(frozen=True)
class DuplicateStats:
    """The duplicates among a text's units of one kind: the units that repeat an earlier one.

    Units: `duplicate_bytes` UTF-8 bytes that would be removed if every unit were kept once. `sampled_fraction` is the
    fraction of the different units that were counted; below 1, `duplicates` and `duplicate_bytes` are estimates for
    the whole text. `example` is the beginning of the unit with the most bytes in duplicates, and `occurrences` how
    often it occurs, at least.
    """

    kind: str
    units: int
    duplicates: int
    duplicate_bytes: int
    sampled_fraction: float
    example: str
    occurrences: int


@dataclass(slots=True)
class _Entry:
    """A counted unit: its occurrences, its bytes, its beginning, and the bytes of occurrences that may be missed."""

    occurrences: int
    size: int
    beginning: bytes
    missed: int

    @classmethod
    def of(cls, unit: Unit, occurrences: int, missed: int = 0) -> "_Entry":
        return cls(occurrences, unit.size, unit.text[: 4 * _EXAMPLE_LENGTH], missed)

    @property
    def duplicates(self) -> int:
        return self.occurrences - 1

    @property
    def duplicate_bytes(self) -> int:
        return self.duplicates * self.size

    @property
    def most_bytes(self) -> int:
        """The most bytes that its occurrences can have."""
        return self.occurrences * self.size + self.missed


class _HeavyHitters:
    """Counts the units whose occurrences have the most bytes, in bounded memory.

    With too many units, it keeps the heavier half. Of each unit, it misses at most 1/_MOST_HEAVY of the bytes of all.
    """

    def __init__(self) -> None:
        self.entries: dict[int, _Entry] = {}
        self._missed = 0

    def add(self, unit: Unit) -> None:
        if (entry := self.entries.get(unit.hash)) is not None:
            entry.occurrences += 1
            return
        self.entries[unit.hash] = _Entry.of(unit, 1, self._missed)
        if len(self.entries) > 2 * _MOST_HEAVY:
            self._missed = sorted(entry.most_bytes for entry in self.entries.values())[_MOST_HEAVY]
            self.entries = {key: entry for key, entry in self.entries.items() if entry.most_bytes > self._missed}


class _DuplicateCounter:
    """Counts duplicates in bounded memory.

    With too many hashes, it keeps only units with a hash that ends in zeros, so that all occurrences of a unit stay.
    """

    def __init__(self, kind: str) -> None:
        self.kind, self.halvings = kind, 0
        self.hashes: set[int] = set()
        self.repeated: dict[int, _Entry] = {}
        self.heavy_hitters = _HeavyHitters()
        self.units = self.bytes = 0

    def add(self, unit: Unit) -> None:
        self.units += 1
        self.bytes += unit.size
        self.heavy_hitters.add(unit)
        if unit.hash & self._mask:
            return
        if unit.hash not in self.hashes:
            self.hashes.add(unit.hash)
            if len(self.hashes) > _MOST_HASHES:
                self._halve()
        elif (entry := self.repeated.get(unit.hash)) is not None:
            entry.occurrences += 1
        else:
            self.repeated[unit.hash] = _Entry.of(unit, 2)

    @property
    def _mask(self) -> int:
        return (1 << self.halvings) - 1

    def _halve(self) -> None:
        self.halvings += 1
        self.hashes = {key for key in self.hashes if not key & self._mask}
        self.repeated = {key: entry for key, entry in self.repeated.items() if not key & self._mask}

    def result(self) -> DuplicateStats:
        fraction = 0.5**self.halvings
        heavy = self._heavy() if self.halvings else {}
        sampled = [entry for key, entry in self.repeated.items() if key not in heavy]
        duplicates = sum(entry.duplicates for entry in heavy.values())
        duplicates += round(sum(entry.duplicates for entry in sampled) / fraction)
        duplicate_bytes = sum(entry.duplicate_bytes for entry in heavy.values())
        duplicate_bytes += round(sum(entry.duplicate_bytes for entry in sampled) / fraction)
        found = [*heavy.values(), *sampled]
        worst = max(found, key=lambda entry: entry.duplicate_bytes, default=_Entry(0, 0, b"", 0))
        return DuplicateStats(
            kind=self.kind,
            units=self.units,
            duplicates=min(duplicates, self.units),
            duplicate_bytes=min(duplicate_bytes, self.bytes),
            sampled_fraction=fraction,
            example=worst.beginning.decode(errors="ignore")[:_EXAMPLE_LENGTH],
            occurrences=worst.occurrences,
        )

    def _heavy(self) -> Mapping[int, _Entry]:
        """The heavy hitters that are duplicates, with the exact count of those that are in the sample too."""
        least = _LEAST_HEAVY * self.bytes / _MOST_HEAVY
        return {
            key: self.repeated.get(key, entry)
            for key, entry in self.heavy_hitters.entries.items()
            if entry.duplicates and entry.occurrences * entry.size >= least
        }


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
