"""What of a text stands in another, and what stands twice in one, found by hashes of windows of bytes.

The hash of a window is a polynomial in its bytes modulo 2^64, so that one running sum gives it for a window of any
length at any place (Karp & Rabin 1987). It knows no files and no documents.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

WINDOW = 50  # bytes: so many in a row are hardly ever the same by chance
MOST_BYTES = 2**24  # in which the longest repeat is looked for: it takes thirty times as much memory, or twice that

_BLOCK = 2**22  # windows hashed at once
_BASE = 0x9E3779B97F4A7C15  # any odd number, with bits all over
_RANDOM = np.random.default_rng(50).integers(0, 2**64, 256, dtype=np.uint64)  # for each byte

Places = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Overlap:
    """How many of a text's windows also stand in another, and its longest stretch of them.

    Units: `start` and `length` in bytes of the text; a length of 0 is none at all.
    """

    windows: int
    shared: int
    start: int
    length: int

    @property
    def share(self) -> float:
        return self.shared / self.windows if self.windows else 0.0


@dataclass(frozen=True)
class Repeat:
    """The longest passage that stands twice in a text, and how many of the windows stand more than once.

    Units: bytes. Where `second` is before the end of the first, the passage repeats something shorter.
    """

    length: int
    first: int
    second: int
    windows: int
    repeated: int

    @property
    def share(self) -> float:
        return self.repeated / self.windows if self.windows else 0.0


class _Windows:
    """The hashes of all windows of a text; `before` is the byte before each place, and 256 before the first."""

    def __init__(self, text: bytes) -> None:
        codes = np.frombuffer(text, dtype=np.uint8)
        self.before = np.concatenate([np.array([256], dtype=np.int16), codes])
        self.sums = np.zeros(len(codes) + 1, dtype=np.uint64)  # of each byte's number times the base to its place
        for start in range(0, len(codes), _BLOCK):
            end = min(start + _BLOCK, len(codes))
            terms = _RANDOM[codes[start:end]] * _power(_BASE, np.arange(start, end))
            np.cumsum(terms, out=self.sums[start + 1 : end + 1])
            self.sums[start + 1 : end + 1] += self.sums[start]

    def at(self, places: Places, length: int) -> Hashes:
        """The hashes of the windows of so many bytes that begin at these places."""
        return (self.sums[places + length] - self.sums[places]) * _power(_INVERSE, places)

    def all(self, length: int) -> Iterator[tuple[Places, Hashes]]:
        """Every window of so many bytes, a block at a time."""
        count = len(self.sums) - length
        for start in range(0, count, _BLOCK):
            places = np.arange(start, min(start + _BLOCK, count))
            yield places, self.at(places, length)


def find_overlap(text: bytes, other: Iterable[bytes], boundary: int, length: int = WINDOW) -> Overlap:
    """How much of a text stands in another, which comes in pieces; windows over a `boundary` byte are left out."""
    hashes = np.concatenate([np.empty(0, np.uint64), *(found for _, found in _Windows(text).all(length))])
    crossed = np.cumsum(np.append(0, np.frombuffer(text, dtype=np.uint8) == boundary))
    whole = (crossed[length:] == crossed[:-length])[: len(hashes)] if len(hashes) else np.zeros(0, dtype=bool)
    wanted = np.unique(hashes[whole])
    stands = np.zeros(len(wanted), dtype=bool)
    may_stand = np.zeros(2**24, dtype=bool)  # by a hash's first bits, which spares most windows the search
    may_stand[wanted >> np.uint64(40)] = True
    held = b""
    for piece in other if len(wanted) else ():
        held += piece
        if len(held) >= _BLOCK:
            _mark(stands, wanted, may_stand, held, length)
            held = held[-(length - 1) :]
    _mark(stands, wanted, may_stand, held, length)
    shared = whole.copy()
    shared[whole] = stands[np.searchsorted(wanted, hashes[whole])]
    start, run = _longest_run(shared)
    return Overlap(int(whole.sum()), int(shared.sum()), start, run + length - 1 if run else 0)


def _mark(
    stands: npt.NDArray[np.bool_], wanted: Hashes, may_stand: npt.NDArray[np.bool_], text: bytes, length: int
) -> None:
    """Marks those of the wanted, which are sorted, that a text has."""
    for _, hashes in _Windows(text).all(length):
        likely = hashes[may_stand[hashes >> np.uint64(40)]]
        if not len(likely):
            continue
        at = np.minimum(np.searchsorted(wanted, likely), len(wanted) - 1)
        stands[at[wanted[at] == likely]] = True


def find_repeat(text: bytes, least: int = WINDOW) -> Repeat | None:
    """The longest passage of at least so many bytes that stands twice in a text of at most MOST_BYTES; None for none.

    A passage that is repeated has repeated beginnings, so from one length to the next only those are left that can
    grow: doubling finds a length that none has, halving what lies between.
    """
    assert len(text) <= MOST_BYTES
    windows = _Windows(text)
    n_repeated, candidates = _repeated(windows, least)
    if not n_repeated:
        return None
    low, high = least, 2 * least
    while len(longer := _growing(windows, candidates, high)[1]):
        candidates, low, high = longer, high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        longer = _growing(windows, candidates, middle)[1]
        if len(longer):
            candidates, low = longer, middle
        else:
            high = middle
    hashes = windows.at(candidates, low)
    first = int(candidates[0])
    second = int(candidates[1:][hashes[1:] == hashes[0]][0])
    assert text[first : first + low] == text[second : second + low]
    return Repeat(low, first, second, len(text) - least + 1, n_repeated)


def _repeated(windows: _Windows, length: int) -> tuple[int, Places]:
    """How many windows of this length stand more than once, and the places of those that a longest repeat can begin at.

    All that are alike are in one of eight parts by their hash, which are looked at one after the other.
    """
    halves = np.empty(max(0, len(windows.sums) - length), dtype=np.uint32)
    for places, hashes in windows.all(length):
        halves[places] = hashes >> np.uint64(32)
    in_order = np.sort(halves)
    twice = np.unique(in_order[1:][in_order[1:] == in_order[:-1]])
    del in_order
    count, found = 0, [np.empty(0, dtype=np.int64)]
    for part in range(8) if len(twice) else ():
        places = np.flatnonzero(halves >> np.uint32(29) == part)
        at = np.minimum(np.searchsorted(twice, halves[places]), len(twice) - 1)
        repeated, beginnings = _growing(windows, places[twice[at] == halves[places]], length)
        count += repeated
        found.append(beginnings)
    return count, np.sort(np.concatenate(found))


def _growing(windows: _Windows, candidates: Places, length: int) -> tuple[int, Places]:
    """How many of the candidates' windows of this length stand more than once, and which do behind different bytes.

    Where all that are alike stand behind the same byte, a longer passage begins one place earlier.
    """
    candidates = candidates[candidates + length < len(windows.sums)]
    if not len(candidates):
        return 0, candidates
    hashes = windows.at(candidates, length)
    order = np.argsort(hashes, kind="stable")
    in_order = hashes[order]
    begins = np.flatnonzero(np.append(True, in_order[1:] != in_order[:-1]))
    sizes = np.diff(np.append(begins, len(order)))
    before = windows.before[candidates[order]]
    differ = np.minimum.reduceat(before, begins) != np.maximum.reduceat(before, begins)
    return int(sizes[sizes > 1].sum()), np.sort(candidates[order[np.repeat(differ & (sizes > 1), sizes)]])


def _longest_run(marks: npt.NDArray[np.bool_]) -> tuple[int, int]:
    """Where the longest run of marks begins, and how many it has."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], marks.astype(np.int8), [0]])))
    if not len(edges):
        return 0, 0
    lengths = edges[1::2] - edges[::2]
    longest = int(lengths.argmax())
    return int(edges[2 * longest]), int(lengths[longest])


def _power(base: int, exponents: npt.NDArray[Any]) -> Hashes:
    """The base to these powers modulo 2^64, as the product of two powers that are looked up."""
    low, high = _TABLES[base]
    return low[exponents & 0xFFFF] * high[exponents >> 16]


def _tables(base: int) -> tuple[Hashes, Hashes]:
    """The base to the powers 0 to 65535, and to those times 65536."""
    low = np.full(2**16, base, dtype=np.uint64)
    low[0] = 1
    low = np.multiply.accumulate(low)
    high = np.full(2**10, pow(base, 2**16, 2**64), dtype=np.uint64)
    high[0] = 1
    return low, np.multiply.accumulate(high)


_INVERSE = pow(_BASE, -1, 2**64)
_TABLES = {base: _tables(base) for base in (_BASE, _INVERSE)}
