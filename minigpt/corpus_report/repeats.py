"""Finds the longest passage that occurs twice in a text, and how much of a text also occurs in another.

A suffix array sorts the positions of a text by what follows them, so equal windows are neighbors in it. The lengths of
the prefixes that neighbors have in common then answer both questions.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

WINDOW = 50  # bytes: windows of this length are hardly ever the same by chance
MOST_BYTES = 2**24  # of a text to search, and of the other text that are searched together


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
        return self.repeated / self.windows


@dataclass(frozen=True)
class Overlap:
    """How many of a text's windows also occur in another, and its longest stretch of such windows.

    Units: `start` and `length` are bytes of the text; a length of 0 means that no window is shared.
    """

    windows: int = 0
    shared: int = 0
    start: int = 0
    length: int = 0

    @property
    def share(self) -> float:
        """The fraction of the windows that are shared."""
        return self.shared / self.windows if self.windows else 0.0


def find_repeat(text: bytes, min_length: int = WINDOW) -> Repeat | None:
    """The longest passage of at least `min_length` bytes that occurs twice in a text, the first of several, or None."""
    order, common = _suffixes(text)
    length = int(common.max(initial=0))
    if length < min_length:
        return None
    longest = np.flatnonzero(common == length)
    first = int(min(order[longest].min(), order[longest + 1].min()))
    second = text.index(text[first : first + length], first + 1)
    is_repeated = common >= min_length  # as the next in the order
    is_repeated[1:] |= is_repeated[:-1].copy()
    return Repeat(length, first, second, len(text) - min_length + 1, int(is_repeated.sum()))


def find_overlap(text: bytes, other: Iterable[bytes], boundary: int, length: int = WINDOW) -> Overlap:
    """Measures how much of `text` occurs in the pieces of `other`; windows with a `boundary` byte do not count."""
    boundaries = np.cumsum(np.append(False, np.frombuffer(text, np.uint8) == boundary))
    counted = boundaries[length:] == boundaries[:-length]
    if not counted.any():
        return Overlap()
    shared = np.zeros(len(counted), dtype=bool)
    pending = b""
    for piece in other:
        pending += piece
        if len(pending) >= MOST_BYTES:
            shared |= _shared(text, pending, length)
            pending = pending[1 - length :]
    shared = counted & (shared | _shared(text, pending, length))
    edges = np.flatnonzero(np.diff(np.concatenate([[0], shared.astype(np.int8), [0]])))
    if not len(edges):
        return Overlap(int(counted.sum()))
    starts, runs = edges[::2], edges[1::2] - edges[::2]
    longest = int(runs.argmax())
    return Overlap(int(counted.sum()), int(shared.sum()), int(starts[longest]), int(runs[longest]) + length - 1)


def _shared(text: bytes, other: bytes, length: int) -> npt.NDArray[np.bool_]:
    """Which windows of `text` occur in `other`. Shapes: (windows,)."""
    order, common = _suffixes(text + other)
    group = np.cumsum(np.append(False, common[:-1] < length), dtype=np.int32)  # of equal windows, in the order
    is_in_other = np.zeros(len(group), dtype=bool)  # by group
    is_in_other[group[order >= len(text)]] = True
    shared = np.empty(len(group), dtype=bool)
    shared[order] = is_in_other[group]
    return shared[: len(text) - length + 1]


def _suffixes(text: bytes) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The suffix array of a text, and the bytes that each suffix in it has in common with the next. Shapes: (N,)."""
    from pydivsufsort import divsufsort, kasai  # of the extra `corpus`

    order = divsufsort(text)
    return order, kasai(text, order)
