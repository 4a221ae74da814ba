"""What of a text stands in another, and what stands twice in one, found by hashes of windows of bytes.

The hash of a window is a polynomial in its bytes, so that the hashes of all beginnings of a text give it for a window
of any length at any place (Karp & Rabin 1987). It is taken modulo a prime, at two points: modulo a power of two, which
would be quicker, some texts have many windows of one hash at every point there is (Thue & Morse's sequence, for one).
What hashes find is compared by its bytes. It knows no files and no documents.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

WINDOW = 50  # bytes: so many in a row are hardly ever the same by chance
MOST_BYTES = 2**24  # in which the longest repeat is looked for: it takes thirty times as much memory, or twice that

_BLOCK = 2**22  # windows hashed at once
_PRIME = 2**31 - 1  # products of two numbers below it have room in 64 bits
_RUN = 2**14  # bytes whose polynomial is one running sum: it grows no longer than 64 bits, and stays in the cache
_COMPARED = 2**16  # windows compared at once

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
    """The hashes of all windows of a text; `before` is the byte before each place, and 256 before the first.

    Another `seed` gives other hashes.
    """

    def __init__(self, text: bytes, seed: int = 0) -> None:
        self.codes = np.frombuffer(text, dtype=np.uint8)
        self.before = np.concatenate([np.array([256], dtype=np.int16), self.codes])
        random = np.random.default_rng(seed)
        self.points: list[int] = random.integers(2**16, _PRIME, 2).tolist()
        self.beginnings = [_beginnings(self.codes, point, random) for point in self.points]

    def at(self, places: Places, length: int) -> Hashes:
        """The hashes of the windows of so many bytes that begin at these places: 62 bits, the highest two being 0."""
        hashes = np.zeros(len(places), dtype=np.uint64)
        for point, beginnings in zip(self.points, self.beginnings, strict=True):
            less = np.uint64(_PRIME - pow(point, length, _PRIME))
            window = beginnings[places].astype(np.uint64)
            window *= less
            window += beginnings[places + length]
            window %= np.uint64(_PRIME)
            hashes = hashes << np.uint64(31) | window
        return hashes

    def all(self, length: int) -> Iterator[tuple[Places, Hashes]]:
        """Every window of so many bytes, a block at a time."""
        total = len(self.before) - length
        for start in range(0, total, _BLOCK):
            places = np.arange(start, min(start + _BLOCK, total))
            yield places, self.at(places, length)


def _beginnings(codes: npt.NDArray[np.uint8], point: int, random: np.random.Generator) -> npt.NDArray[np.uint32]:
    """The polynomial of every beginning of a text at this point, its last byte being the constant. Shapes: (N + 1,)."""
    numbers = random.integers(1, _PRIME, 256, dtype=np.uint64)  # for each byte
    powers, inverses = _powers(point), _powers(pow(point, -1, _PRIME))
    prime = np.uint64(_PRIME)
    found = np.zeros(len(codes) + 1, dtype=np.uint32)
    for start in range(0, len(codes), _RUN):
        terms = numbers[codes[start : start + _RUN]]
        terms *= inverses[: len(terms)]
        terms %= prime
        sums = np.cumsum(terms)
        sums += np.uint64(int(found[start]) * point % _PRIME)
        sums %= prime
        sums *= powers[: len(sums)]
        sums %= prime
        found[start + 1 : start + 1 + len(sums)] = sums
    return found


def _powers(base: int) -> Hashes:
    """The base to the powers 0 to _RUN - 1."""
    powers = [1]
    while len(powers) < _RUN:
        powers.append(powers[-1] * base % _PRIME)
    return np.array(powers, dtype=np.uint64)


def find_overlap(text: bytes, other: Iterable[bytes], boundary: int, length: int = WINDOW) -> Overlap:
    """How much of a text stands in another, which comes in pieces; windows over a `boundary` byte are left out."""
    windows = _Windows(text)
    hashes = np.concatenate([np.empty(0, np.uint64), *(found for _, found in windows.all(length))])
    crossed = np.cumsum(np.append(0, windows.codes == boundary))
    whole = (crossed[length:] == crossed[:-length])[: len(hashes)] if len(hashes) else np.zeros(0, dtype=bool)
    wanted = _Wanted(windows, np.flatnonzero(whole), hashes[whole], length)
    held = b""
    for piece in other if len(wanted.hashes) else ():
        held += piece
        if len(held) >= _BLOCK:
            wanted.look_in(held)
            held = held[-(length - 1) :]
    wanted.look_in(held)
    shared = whole.copy()
    shared[whole] = wanted.stands[np.searchsorted(wanted.hashes, hashes[whole])]
    start, run = _longest_run(shared)
    return Overlap(int(whole.sum()), int(shared.sum()), start, run + length - 1 if run else 0)


class _Wanted:
    """The different ones among a text's windows, in the order of their hashes, and whether each `stands` elsewhere."""

    def __init__(self, windows: _Windows, places: Places, hashes: Hashes, length: int) -> None:
        self.codes, self.length = windows.codes, length
        self.hashes, first = np.unique(hashes, return_index=True)
        self.places = places[first]
        self.stands = np.zeros(len(self.hashes), dtype=bool)
        self._may_stand = np.zeros(2**24, dtype=bool)  # by a hash's first bits, which spares most windows the search
        self._may_stand[self.hashes >> np.uint64(38)] = True

    def look_in(self, text: bytes) -> None:
        """Marks those that this text has."""
        windows = _Windows(text)
        for places, hashes in windows.all(self.length) if len(self.hashes) else ():
            likely = self._may_stand[hashes >> np.uint64(38)]
            places, hashes = places[likely], hashes[likely]
            if not len(hashes):
                continue
            at = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
            new = (self.hashes[at] == hashes) & ~self.stands[at]
            at, first = np.unique(at[new], return_index=True)
            self._compare(windows, places[new][first], at)

    def _compare(self, windows: _Windows, places: Places, at: Places) -> None:
        ours = np.lib.stride_tricks.sliding_window_view(self.codes, self.length)
        theirs = np.lib.stride_tricks.sliding_window_view(windows.codes, self.length)
        for start in range(0, len(at), _COMPARED):
            part = slice(start, start + _COMPARED)
            self.stands[at[part]] = (ours[self.places[at[part]]] == theirs[places[part]]).all(axis=1)


def find_repeat(text: bytes, least: int = WINDOW) -> Repeat | None:
    """The longest passage of at least so many bytes that stands twice in a text of at most MOST_BYTES; None for none.

    A passage that is repeated has repeated beginnings, so from one length to the next only those are left that can
    grow: doubling finds a length that none has, halving what lies between.
    """
    assert len(text) <= MOST_BYTES
    seed = 0  # a hash that two windows share hides no repeat, but may feign one: then others are tried
    while (found := _repeat_by_hashes(_Windows(text, seed), least)) and (
        text[found.first : found.first + found.length] != text[found.second : found.second + found.length]
    ):
        seed += 1
    return found


def _repeat_by_hashes(windows: _Windows, least: int) -> Repeat | None:
    """The longest repeat, if hashes tell the truth."""
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
    return Repeat(low, first, second, len(windows.before) - least, n_repeated)


def _repeated(windows: _Windows, length: int) -> tuple[int, Places]:
    """How many windows of this length stand more than once, and the places of those that a longest repeat can begin at.

    All that are alike are in one of eight parts by their hash, which are looked at one after the other.
    """
    halves = np.empty(max(0, len(windows.before) - length), dtype=np.uint32)
    for places, hashes in windows.all(length):
        halves[places] = hashes >> np.uint64(30)
    in_order = np.sort(halves)
    twice = np.unique(in_order[1:][in_order[1:] == in_order[:-1]])
    del in_order
    repeated, found = 0, [np.empty(0, dtype=np.int64)]
    for part in range(8) if len(twice) else ():
        places = np.flatnonzero(halves >> np.uint32(29) == part)
        at = np.minimum(np.searchsorted(twice, halves[places]), len(twice) - 1)
        more, beginnings = _growing(windows, places[twice[at] == halves[places]], length)
        repeated += more
        found.append(beginnings)
    return repeated, np.sort(np.concatenate(found))


def _growing(windows: _Windows, candidates: Places, length: int) -> tuple[int, Places]:
    """How many of the candidates' windows of this length stand more than once, and which do behind different bytes.

    Where all that are alike stand behind the same byte, a longer passage begins one place earlier.
    """
    candidates = candidates[candidates + length < len(windows.before)]
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
