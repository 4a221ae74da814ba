"""Builds a suffix array over integer ids, and finds the longest prefix of a query that occurs in the sequence.

A suffix array holds the positions of a sequence, sorted by the suffixes that start there. All occurrences of a
subsequence are adjacent in it, so a binary search finds them.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]

_FIRST_LENGTH = 32  # ids of the query that are compared first; few matches are longer


@dataclass(frozen=True)
class Match:
    """The longest prefix of a query that occurs: its length, its first position, and its number of occurrences."""

    length: int
    position: int
    occurrences: int


def build_suffix_array(ids: Ids) -> Ids:
    """The positions of `ids`, sorted by the suffixes that start there; a prefix comes before the longer suffix.

    Prefix doubling: when suffixes are sorted by their first k ids, the rank of the suffix k positions later sorts them
    by 2k. Suffixes whose order is already decided are not sorted again. Shapes: (N,).
    Source: Manber & Myers 1990; Larsson & Sadakane 1999 for not sorting decided suffixes again.
    """
    n = len(ids)
    order = np.argsort(ids, kind="stable")
    rank = np.zeros(n, dtype=np.int64)  # by position: the first slot of its group of equal prefixes
    slots = np.arange(n)  # slots of `order` that are not decided yet
    keys = ids[order].astype(np.int64)
    length = 1
    while len(slots):
        is_first = np.ones(len(slots), dtype=bool)
        np.not_equal(keys[1:], keys[:-1], out=is_first[1:])
        rank[order[slots]] = slots[np.maximum.accumulate(np.where(is_first, np.arange(len(slots)), 0))]
        is_unique = is_first & np.append(is_first[1:], True)
        slots = slots[~is_unique]
        suffixes = order[slots]
        after = suffixes + length
        # A group's rank is its first slot, so sorting all groups together keeps each group in its slots.
        keys = rank[suffixes] * (n + 1) + np.where(after < n, rank[np.minimum(after, n - 1)] + 1, 0)
        sorting = np.argsort(keys, kind="stable")
        keys = keys[sorting]
        order[slots] = suffixes[sorting]
        length *= 2
    return order.astype(np.int32)


def find_longest_prefix(ids: Ids, suffix_array: Ids, query: Sequence[int]) -> Match:
    """The longest prefix of `query` that occurs in `ids`; length 0 if its first id does not occur."""
    compared = _FIRST_LENGTH
    while True:
        wanted = list(query[:compared])

        def ids_at(position: int, length: int = len(wanted)) -> list[int]:
            return ids[position : position + length].tolist()

        slot = bisect_left(suffix_array, wanted, key=ids_at)
        neighbors = suffix_array[max(0, slot - 1) : slot + 1]
        length = max((_common_prefix_length(wanted, ids_at(position)) for position in neighbors), default=0)
        if length == compared and compared < len(query):
            compared *= 2
            continue
        if not length:
            return Match(0, 0, 0)
        wanted = wanted[:length]
        first = bisect_left(suffix_array, wanted, key=lambda position: ids_at(position, length))
        end = bisect_right(suffix_array, wanted, lo=first, key=lambda position: ids_at(position, length))
        return Match(length, int(suffix_array[first:end].min()), end - first)


def _common_prefix_length(left: Sequence[int], right: Sequence[int]) -> int:
    for count, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return count
    return min(len(left), len(right))
