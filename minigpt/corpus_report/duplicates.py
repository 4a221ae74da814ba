"""Finds documents, paragraphs and lines that occur more than once in a text, by their hashes."""

from collections.abc import Iterable
from dataclasses import dataclass

from minigpt.corpus_report.near_duplicates import NearDuplicateFinder, NearDuplicateStats
from minigpt.corpus_report.units import Unit, read_units
from minigpt.data.sources import Piece

_MOST_HASHES = 2**19  # of one kind; beyond, only every second unit is sampled, then every fourth, ...
_EXAMPLE_LENGTH = 160  # characters
_MANY_DOCUMENTS = 20  # from which on near-duplicates are documents, not paragraphs


@dataclass(frozen=True)
class DuplicateStats:
    """The duplicates among a text's units of one kind: the units that repeat an earlier one.

    Units: `duplicate_bytes` UTF-8 bytes that would be removed if every unit were kept once. `sampled_fraction` is the
    fraction of the different units that were counted. `example` is the beginning of the unit with the most bytes
    in duplicates, and `occurrences` how often it occurs.
    """

    kind: str
    units: int
    duplicates: int
    duplicate_bytes: int
    sampled_fraction: float
    example: str
    occurrences: int


class _DuplicateCounter:
    """Counts duplicates in bounded memory.

    With too many hashes, it keeps only units with a hash that ends in zeros, so that all occurrences of a unit stay.
    """

    def __init__(self, kind: str) -> None:
        self.kind, self.halvings = kind, 0
        self.hashes: set[int] = set()
        self.repeated: dict[int, tuple[int, int, str]] = {}  # occurrences, bytes, beginning
        self.units = 0

    def add(self, unit: Unit) -> None:
        if unit.hash & self._mask:
            return
        self.units += 1
        if unit.hash not in self.hashes:
            self.hashes.add(unit.hash)
            if len(self.hashes) > _MOST_HASHES:
                self._halve()
            return
        occurrences = self.repeated[unit.hash][0] if unit.hash in self.repeated else 1
        self.repeated[unit.hash] = occurrences + 1, unit.size, _beginning(unit.text)

    @property
    def _mask(self) -> int:
        return (1 << self.halvings) - 1

    def _halve(self) -> None:
        self.halvings += 1
        before = len(self.hashes)
        self.hashes = {key for key in self.hashes if not key & self._mask}
        self.repeated = {key: entry for key, entry in self.repeated.items() if not key & self._mask}
        self.units = round(self.units * len(self.hashes) / before)  # an estimate: the dropped units were not recorded

    def result(self) -> DuplicateStats:
        worst = max(self.repeated.values(), key=lambda entry: entry[0] * entry[1], default=(0, 0, ""))
        return DuplicateStats(
            kind=self.kind,
            units=self.units,
            duplicates=sum(occurrences - 1 for occurrences, _, _ in self.repeated.values()),
            duplicate_bytes=sum((occurrences - 1) * size for occurrences, size, _ in self.repeated.values()),
            sampled_fraction=0.5**self.halvings,
            example=worst[2],
            occurrences=worst[0],
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


def _beginning(text: bytes) -> str:
    return text[: 4 * _EXAMPLE_LENGTH].decode(errors="ignore")[:_EXAMPLE_LENGTH]
