"""Measures how much of a text also occurs in another: the leakage of training text into the validation text."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from minigpt.corpus_report.window_hashes import WINDOW, Hashes, Positions, WindowHashes

_SEARCHED = 2**22  # bytes of the other text that are searched together
_COMPARED = 2**16  # windows compared together
_FILTER_BITS = 24  # of a 62-bit hash: a table of them spares most windows the binary search


@dataclass(frozen=True)
class Overlap:
    """How many of a text's windows also occur in another, and its longest stretch of such windows.

    Units: `start` and `length` are bytes of the text; a length of 0 means that no window is shared.
    """

    windows: int
    shared: int
    start: int
    length: int

    @property
    def share(self) -> float:
        """The fraction of the windows that are shared."""
        return self.shared / self.windows if self.windows else 0.0


def find_overlap(text: bytes, other: Iterable[bytes], boundary: int, length: int = WINDOW) -> Overlap:
    """Measures how much of `text` occurs in the pieces of `other`; windows with a `boundary` byte do not count."""
    hashed = WindowHashes(text)
    hashes = np.concatenate([np.empty(0, np.uint64), *(block for _, block in hashed.all(length))])
    boundaries = np.cumsum(np.append(0, hashed.codes == boundary))
    counted = (boundaries[length:] == boundaries[:-length])[: len(hashes)] if len(hashes) else np.zeros(0, dtype=bool)
    windows = _DistinctWindows(hashed, np.flatnonzero(counted), hashes[counted], length)
    pending = b""
    for piece in other if len(windows.hashes) else ():
        pending += piece
        if len(pending) >= _SEARCHED:
            windows.search(pending)
            pending = pending[-(length - 1) :]
    windows.search(pending)
    shared = counted.copy()
    shared[counted] = windows.is_shared[np.searchsorted(windows.hashes, hashes[counted])]
    start, run = _longest_run(shared)
    return Overlap(int(counted.sum()), int(shared.sum()), start, run + length - 1 if run else 0)


class _DistinctWindows:
    """The different windows of a text, sorted by hash, and whether each was found in another text."""

    def __init__(self, hashed: WindowHashes, positions: Positions, hashes: Hashes, length: int) -> None:
        self.codes, self.length = hashed.codes, length
        self.hashes, first = np.unique(hashes, return_index=True)
        self.positions = positions[first]
        self.is_shared = np.zeros(len(self.hashes), dtype=bool)
        self._filter = np.zeros(2**_FILTER_BITS, dtype=bool)
        self._filter[_first_bits(self.hashes)] = True

    def search(self, text: bytes) -> None:
        """Marks the windows that occur in `text`."""
        hashed = WindowHashes(text)
        for positions, hashes in hashed.all(self.length) if len(self.hashes) else ():
            possible = self._filter[_first_bits(hashes)]
            positions, hashes = positions[possible], hashes[possible]
            if not len(hashes):
                continue
            indices = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
            new = (self.hashes[indices] == hashes) & ~self.is_shared[indices]
            indices, first = np.unique(indices[new], return_index=True)
            self._compare(hashed, positions[new][first], indices)

    def _compare(self, other: WindowHashes, positions: Positions, indices: Positions) -> None:
        own_windows = np.lib.stride_tricks.sliding_window_view(self.codes, self.length)
        other_windows = np.lib.stride_tricks.sliding_window_view(other.codes, self.length)
        for start in range(0, len(indices), _COMPARED):
            part = slice(start, start + _COMPARED)
            own, others = own_windows[self.positions[indices[part]]], other_windows[positions[part]]
            self.is_shared[indices[part]] = (own == others).all(axis=1)


def _first_bits(hashes: Hashes) -> Hashes:
    return hashes >> np.uint64(62 - _FILTER_BITS)


def _longest_run(marks: npt.NDArray[np.bool_]) -> tuple[int, int]:
    """The start and the length of the longest run of true marks."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], marks.astype(np.int8), [0]])))
    if not len(edges):
        return 0, 0
    lengths = edges[1::2] - edges[::2]
    longest = int(lengths.argmax())
    return int(edges[2 * longest]), int(lengths[longest])
