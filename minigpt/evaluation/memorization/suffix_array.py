"""The sorted suffixes of a long sequence of small numbers, and what of another sequence occurs in it; it knows no text.

A suffix array: the places of the sequence, ordered by what follows from there on. All places where some numbers occur
side by side lie side by side in it, so binary search finds the longest beginning of any query that occurs at all.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]

_FIRST_LOOK = 32  # numbers of a query compared at first; few matches are longer


@dataclass(frozen=True)
class Match:
    """The longest beginning of a query that occurs: its length, its first place in the sequence, and how often."""

    length: int
    place: int
    times: int


def sort_suffixes(ids: Ids) -> Ids:
    """The places of a sequence in the order of its suffixes; one that ends is before one that goes on. Shapes: (N,).

    Prefix doubling: suffixes sorted by their first k numbers are sorted by 2k once each has for its second half the
    rank of the suffix k places on. Those that stand alone already are left where they are.
    Source: Manber & Myers 1990; Larsson & Sadakane 1999 for leaving alone.
    """
    n = len(ids)
    order = np.argsort(ids, kind="stable")
    rank = np.zeros(n, dtype=np.int64)  # where the group of equals begins in the order, by place
    slots = np.arange(n)  # of the order, not settled yet
    keys = ids[order].astype(np.int64)
    length = 1
    while len(slots):
        begins = np.ones(len(slots), dtype=bool)
        np.not_equal(keys[1:], keys[:-1], out=begins[1:])
        rank[order[slots]] = slots[np.maximum.accumulate(np.where(begins, np.arange(len(slots)), 0))]
        alone = begins & np.append(begins[1:], True)
        slots = slots[~alone]
        suffixes = order[slots]
        after = suffixes + length
        # A group's rank is its first slot, so sorting all groups at once keeps each in its slots.
        keys = rank[suffixes] * (n + 1) + np.where(after < n, rank[np.minimum(after, n - 1)] + 1, 0)
        sorting = np.argsort(keys, kind="stable")
        keys = keys[sorting]
        order[slots] = suffixes[sorting]
        length *= 2
    return order.astype(np.int32)


def find_longest(ids: Ids, suffixes: Ids, query: Sequence[int]) -> Match:
    """The longest beginning of the query that occurs in the sequence whose sorted suffixes these are."""
    look = _FIRST_LOOK
    while True:
        wanted = list(query[:look])

        def head(place: int, length: int = len(wanted)) -> list[int]:
            return ids[place : place + length].tolist()

        slot = bisect_left(suffixes, wanted, key=head)
        length = max((_common(wanted, head(place)) for place in suffixes[max(0, slot - 1) : slot + 1]), default=0)
        if length == look and look < len(query):
            look *= 2
            continue
        if not length:
            return Match(0, 0, 0)
        wanted = wanted[:length]
        first = bisect_left(suffixes, wanted, key=lambda place: head(place, length))
        end = bisect_right(suffixes, wanted, lo=first, key=lambda place: head(place, length))
        return Match(length, int(suffixes[first:end].min()), end - first)


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    """How many numbers two sequences begin with in common."""
    for count, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return count
    return min(len(left), len(right))
