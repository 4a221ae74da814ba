"""Finds the longest passage that occurs twice in a text."""

from dataclasses import dataclass

import numpy as np

from minigpt.corpus_report.window_hashes import WINDOW, Positions, WindowHashes

MOST_BYTES = 2**24  # of a text to search: this takes 30 to 60 times as much memory


@dataclass(frozen=True)
class Repeat:
    """The longest passage that occurs twice in a text, and how many windows occur more than once.

    Units: `length`, `first` and `second` are bytes. The two occurrences overlap if `second` < `first` + `length`.
    """

    length: int
    first: int
    second: int
    windows: int
    repeated: int

    @property
    def share(self) -> float:
        """The fraction of the windows that are repeated."""
        return self.repeated / self.windows if self.windows else 0.0


def find_repeat(text: bytes, min_length: int = WINDOW) -> Repeat | None:
    """The longest passage of at least `min_length` bytes that occurs twice in a text of at most MOST_BYTES, or None.

    Every prefix of a repeated passage is repeated. So only the windows that are repeated at one length can be repeated
    at a greater one: doubling finds a length that no passage has, and bisection the longest that one has.
    """
    assert len(text) <= MOST_BYTES
    seed = 0  # a hash collision cannot hide a repeat but may fake one: then another seed is tried
    while (found := _repeat_by_hashes(WindowHashes(text, seed), min_length)) and (
        text[found.first : found.first + found.length] != text[found.second : found.second + found.length]
    ):
        seed += 1
    return found


def _repeat_by_hashes(hashed: WindowHashes, min_length: int) -> Repeat | None:
    """The longest repeat, not verified: its two windows have equal hashes."""
    n_repeated, candidates = _repeated(hashed, min_length)
    if not n_repeated:
        return None
    low, high = min_length, 2 * min_length
    while len(longer := _extendable(hashed, candidates, high)[1]):
        candidates, low, high = longer, high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        longer = _extendable(hashed, candidates, middle)[1]
        if len(longer):
            candidates, low = longer, middle
        else:
            high = middle
    hashes = hashed.at(candidates, low)
    first = int(candidates[0])
    second = int(candidates[1:][hashes[1:] == hashes[0]][0])
    return Repeat(low, first, second, len(hashed.preceding) - min_length, n_repeated)


def _repeated(hashed: WindowHashes, length: int) -> tuple[int, Positions]:
    """The number of windows of this length that occur more than once, and the possible starts of a longest repeat.

    To save memory, the windows are divided into eight parts by their hashes. Equal windows are in the same part.
    """
    half_hashes = np.empty(max(0, len(hashed.preceding) - length), dtype=np.uint32)
    for positions, hashes in hashed.all(length):
        half_hashes[positions] = hashes >> np.uint64(30)
    ordered = np.sort(half_hashes)
    repeated_halves = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    del ordered
    repeated, found = 0, [np.empty(0, dtype=np.int64)]
    for part in range(8) if len(repeated_halves) else ():
        positions = np.flatnonzero(half_hashes >> np.uint32(29) == part)
        indices = np.minimum(np.searchsorted(repeated_halves, half_hashes[positions]), len(repeated_halves) - 1)
        is_candidate = repeated_halves[indices] == half_hashes[positions]
        count, extendable = _extendable(hashed, positions[is_candidate], length)
        repeated += count
        found.append(extendable)
    return repeated, np.sort(np.concatenate(found))


def _extendable(hashed: WindowHashes, candidates: Positions, length: int) -> tuple[int, Positions]:
    """The number of candidates of this length that occur more than once, and their positions after different bytes.

    If all equal windows follow the same byte, a longer repeat begins one position earlier.
    """
    candidates = candidates[candidates + length < len(hashed.preceding)]
    if not len(candidates):
        return 0, candidates
    hashes = hashed.at(candidates, length)
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    group_starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    sizes = np.diff(np.append(group_starts, len(order)))
    preceding = hashed.preceding[candidates[order]]
    differs = np.minimum.reduceat(preceding, group_starts) != np.maximum.reduceat(preceding, group_starts)
    return int(sizes[sizes > 1].sum()), np.sort(candidates[order[np.repeat(differs & (sizes > 1), sizes)]])
