"""Documents, paragraphs and lines that a text holds more than once, word for word or nearly; it knows no files.

Exact copies are found by hashes. Near copies by MinHash: two sets of word shingles share the least of a random order
with the probability of their Jaccard similarity, so that equal numbers among many such leasts estimate it, and only
those are compared that agree in a whole band of them (Broder 1997; Leskovec et al., Mining of Massive Datasets, 3.4).
"""

import hashlib
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
import numpy.typing as npt

from minigpt.data.sources import Piece

LEAST_LINE, LEAST_PARAGRAPH = 40, 100  # characters: shorter ones are rightly the same ("Chapter 1")
LEAST_WORDS = 20  # of a paragraph that is compared with others
SHINGLE = 5  # words
SIMILAR = 0.8  # Jaccard similarity of the shingles, from which on two texts are near copies

_MOST_KEPT = 2**19  # hashes of one kind; from there on every second one, then every fourth ..., is looked at
_MOST_SIGNATURES = 2**17  # 32 MB
_HASHES, _BANDS = 64, 16  # bands of four: of two texts 0.8 alike, 99.98 % share one
_MOST_SHINGLES = 20_000  # of one text
_LONGEST_BEGINNING = 10 * _MOST_SHINGLES  # bytes of a document that are compared with others
_LONGEST_HELD = 2**22  # characters without an empty line
_SNIPPET = 160  # characters of an example
_BEFORE, _BEHIND = 6, 10  # words around a difference that are shown
_LONGEST_KEY = 1000  # characters of a line, to each side of a difference, by which it is found
_EMPTY_LINE = re.compile(r"\n[ \t]*\n\s*")
_RANDOM = np.random.default_rng(64)
_FACTORS = _RANDOM.integers(0, 2**63, (_HASHES, 1), dtype=np.uint64) * 2 + 1
_TERMS = _RANDOM.integers(0, 2**64, (_HASHES, 1), dtype=np.uint64)
_IN_BAND = _RANDOM.integers(0, 2**63, _HASHES // _BANDS, dtype=np.uint64) * 2 + 1
_IN_SHINGLE = _RANDOM.integers(0, 2**63, SHINGLE, dtype=np.uint64) * 2 + 1

Signature = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Copies:
    """How many of a text's units of one kind stand in it before, and an example of the one that stands most often.

    `looked_at` is the share of the different units that were: 1.0 for all of them. Units: `copied_bytes` UTF-8 bytes
    that would go with the copies.
    """

    kind: str
    units: int
    copies: int
    copied_bytes: int
    looked_at: float
    example: str
    times: int


@dataclass(frozen=True)
class NearCopies:
    """How many of the units compared are much like an earlier one, not word for word, and the hashes of the most alike
    two, by which `texts_of` finds them again."""

    kind: str
    units: int
    copies: int
    looked_at: float
    examples: tuple[int, int] | None
    similarity: float


@dataclass(frozen=True)
class Excerpt:
    """Where a text first differs from another: the words around, and the line by which it is found in its file."""

    words: str
    line: str


class _Counter:
    """Counts copies in bounded memory: where hashes become too many, only those of every second unit are looked at,
    which keeps all copies of a unit together."""

    def __init__(self, kind: str) -> None:
        self.kind, self.halvings = kind, 0
        self.first: set[int] = set()
        self.copied: dict[int, tuple[int, int, str]] = {}  # times, bytes, beginning
        self.units = 0

    def add(self, unit: bytes, key: int, size: int) -> None:
        """Counts a unit of this hash and of so many bytes, of which those given may be the first."""
        if key & ((1 << self.halvings) - 1):
            return
        self.units += 1
        if key not in self.first:
            self.first.add(key)
            if len(self.first) > _MOST_KEPT:
                self._halve()
            return
        times = self.copied[key][0] if key in self.copied else 1
        self.copied[key] = times + 1, size, _snippet(unit)

    def _halve(self) -> None:
        self.halvings += 1
        mask = (1 << self.halvings) - 1
        before = len(self.first)
        self.first = {key for key in self.first if not key & mask}
        self.copied = {key: copied for key, copied in self.copied.items() if not key & mask}
        self.units = round(self.units * len(self.first) / before)  # of those that are no longer looked at, an estimate

    def result(self) -> Copies:
        worst = max(self.copied.values(), key=lambda copied: copied[0] * copied[1], default=(0, 0, ""))
        return Copies(
            kind=self.kind,
            units=self.units,
            copies=sum(times - 1 for times, _, _ in self.copied.values()),
            copied_bytes=sum((times - 1) * size for times, size, _ in self.copied.values()),
            looked_at=0.5**self.halvings,
            example=worst[2],
            times=worst[0],
        )


@dataclass(frozen=True)
class _Unit:
    key: int  # the hash of all of it
    chosen_by: int  # a number that near copies mostly share
    signature: Signature


class _Near:
    """Compares units in bounded memory: where they become too many, those of every second kind, by the first number of
    their signatures, which near copies mostly share."""

    def __init__(self, kind: str) -> None:
        self.kind, self.halvings = kind, 0
        self.units: list[_Unit] = []

    def add(self, unit: bytes, key: int) -> None:
        """Takes in a unit of this hash."""
        shingles = _shingles(unit)
        if shingles is None:
            return
        chosen_by = int((_FACTORS[0] * shingles + _TERMS[0]).min() >> np.uint64(8))
        if not chosen_by & self._mask:
            self.units.append(_Unit(key, chosen_by, _signature(shingles)))
        if len(self.units) > _MOST_SIGNATURES:
            self.halvings += 1
            self.units = [unit for unit in self.units if not unit.chosen_by & self._mask]

    @property
    def _mask(self) -> int:
        return (1 << self.halvings) - 1

    def result(self) -> NearCopies:
        found = _pairs(self.units)
        alike, left, right = max(found, default=(0.0, 0, 0), key=lambda pair: (pair[0], -pair[1]))
        return NearCopies(
            kind=self.kind,
            units=len(self.units),
            copies=len({right for _, _, right in found}),
            looked_at=0.5**self.halvings,
            examples=(self.units[left].key, self.units[right].key) if found else None,
            similarity=alike,
        )


def find_copies(pieces: Iterable[Piece], n_documents: int) -> tuple[list[Copies], NearCopies]:
    """What a text of so many documents holds more than once: its documents, paragraphs and lines.

    Near copies are looked for among its documents where there are 20 or more, else among its paragraphs.
    """
    counters = {kind: _Counter(kind) for kind in ("documents", "paragraphs", "lines")}
    near = _Near("documents" if n_documents >= 20 else "paragraphs")
    for kind, unit, key, size in _units(pieces):
        counters[kind].add(unit, key, size)
        if kind == near.kind:
            near.add(unit, key)
    return [counter.result() for counter in counters.values()], near.result()


def texts_of(pieces: Iterable[Piece], near: NearCopies) -> tuple[str, str] | None:
    """The two of a text that are most alike, in a second reading of it; None where there are none."""
    if near.examples is None:
        return None
    found: dict[int, str] = {}
    for kind, unit, key, _ in _units(pieces):
        if kind == near.kind and key in near.examples:
            found.setdefault(key, unit.decode())
            if len(found) == 2:
                break
    left, right = near.examples
    return found[left], found[right]


def first_difference(left: str, right: str) -> tuple[Excerpt, Excerpt]:
    """Where two texts first differ in a word: the beginning of both, where they do so nowhere."""
    words = [list(re.finditer(r"\S+", text)) for text in (left, right)]
    pairs = enumerate(zip_longest(*([word[0] for word in some] for some in words)))
    number = next((number for number, (one, other) in pairs if one != other), 0)
    return _excerpt(left, words[0], number), _excerpt(right, words[1], number)


def _excerpt(text: str, words: Sequence[re.Match[str]], number: int) -> Excerpt:
    """The words around the one of this number, which may be one behind the last."""
    shown = " ".join(word[0] for word in words[max(0, number - _BEFORE) : number + _BEHIND])
    at = words[min(number, len(words) - 1)].start()
    start, end = text.rfind("\n", 0, at) + 1, text.find("\n", at)
    line = text[max(start, at - _LONGEST_KEY) : min(len(text) if end < 0 else end, at + _LONGEST_KEY)]
    front, back = "… " * (number > _BEFORE), " …" * (number + _BEHIND < len(words))
    return Excerpt(f"{front}{shown}{back}", line.strip())


def _units(pieces: Iterable[Piece]) -> Iterator[tuple[str, bytes, int, int]]:
    """The lines, paragraphs and documents of a text: the kind of each, its text (of a document the beginning), its hash
    and how many bytes it has."""
    digest, beginning, size = hashlib.blake2b(digest_size=8), bytearray(), 0
    for paragraph, ends in _paragraphs(pieces):
        unit = paragraph.encode()
        digest.update(unit + b"\n\n")
        size += len(unit)
        if len(beginning) < _LONGEST_BEGINNING:
            beginning += unit + b"\n\n"
        if len(paragraph) >= LEAST_PARAGRAPH:
            yield "paragraphs", unit, _hash(unit), len(unit)
        for line in unit.split(b"\n"):
            if len(line := line.strip()) >= LEAST_LINE and len(line.decode()) >= LEAST_LINE:
                yield "lines", line, _hash(line), len(line)
        if ends:
            yield "documents", bytes(beginning), int.from_bytes(digest.digest(), "little"), size
            digest, beginning, size = hashlib.blake2b(digest_size=8), bytearray(), 0


def _paragraphs(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """What stands between empty lines, without the white space around; an empty one may end a document."""
    held = ""
    for piece, ends in pieces:
        held += piece
        if not ends and held.endswith("\r"):
            continue  # the other half of a line's end may follow
        *whole, held = _EMPTY_LINE.split(held.replace("\r\n", "\n").replace("\r", "\n"))
        if not ends and len(held) > _LONGEST_HELD:
            whole, held = [*whole, held], ""
        for paragraph in whole:
            if stripped := paragraph.strip():
                yield stripped, False
        if ends:
            yield held.strip(), True
            held = ""


def _hash(unit: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(unit, digest_size=8).digest(), "little")


def _shingles(unit: bytes) -> npt.NDArray[np.uint64] | None:
    """The hashes of a text's shingles, case apart; None where it has few words."""
    words = unit.lower().split(maxsplit=_MOST_SHINGLES)[:_MOST_SHINGLES]
    if len(words) < LEAST_WORDS:
        return None
    codes = np.fromiter(map(zlib.crc32, words), dtype=np.uint64, count=len(words))
    count = len(words) - SHINGLE + 1
    mixed = sum((codes[i : i + count] * _IN_SHINGLE[i] for i in range(SHINGLE)), np.zeros(count, np.uint64))
    return mixed ^ (mixed >> np.uint64(29))


def _signature(shingles: npt.NDArray[np.uint64]) -> Signature:
    """The least of each of many random orders. Shapes: (_HASHES,)."""
    return ((_FACTORS * shingles + _TERMS) >> np.uint64(32)).min(axis=1).astype(np.uint32)


def _pairs(units: Sequence[_Unit]) -> list[tuple[float, int, int]]:
    """The near copies among units that follow one another in some band: how much alike they are, and which."""
    if not units:
        return []
    signatures = np.stack([unit.signature for unit in units])
    bands = (signatures.reshape(len(units), _BANDS, -1) * _IN_BAND).sum(axis=-1)  # (N, bands), a hash of each
    candidates: set[tuple[int, int]] = set()
    for band in bands.T:
        order = np.argsort(band, kind="stable")
        same = band[order[1:]] == band[order[:-1]]
        candidates.update(zip(order[:-1][same].tolist(), order[1:][same].tolist(), strict=True))
    pairs = []
    for left, right in candidates:
        alike = float((signatures[left] == signatures[right]).mean())
        if alike >= SIMILAR and units[left].key != units[right].key:
            pairs.append((alike, left, right))
    return pairs


def _snippet(unit: bytes) -> str:
    return unit[: 4 * _SNIPPET].decode(errors="ignore")[:_SNIPPET]
