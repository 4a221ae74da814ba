"""The honest opponent: a model that knows how often bytes follow the few before them, and nothing else.

Interpolated Kneser-Ney with modified discounts. Every order takes a discount off its counts and hands what that frees
on to the order below, down to all 256 bytes alike; below the highest order an n-gram counts once for every byte that it
was seen to follow. Each distribution over the 256 bytes adds up to 1.
Source: Chen & Goodman 1999, equations 16 to 19 and section 3.
"""

import math
import re
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]

BOUNDARY = 0xFF  # stands between documents, since it occurs in no UTF-8, and before the first

_BLOCK = 2**23  # bytes whose n-grams are sorted at once: 64 MB
_WORD = re.compile(rb"[0-9A-Za-z\x80-\xfe]+|[^0-9A-Za-z\x80-\xfe]")
_MOST = 7  # bytes in a key, so that a context is one too


@dataclass(frozen=True)
class _Order:
    """What is known of the n-grams of one length; keys are sorted, and a key is the bytes of one, the last lowest.

    `shares` are what each n-gram has of its context's probability after the discount; `freed` is what each context
    hands on.
    """

    keys: Keys
    shares: npt.NDArray[np.float64]
    contexts: Keys
    freed: npt.NDArray[np.float64]

    @classmethod
    def of(cls, keys: Keys, counts: npt.NDArray[np.int64]) -> Self:
        after_context = keys >> np.uint64(8)
        begins = np.flatnonzero(_is_first(after_context))
        sizes = np.diff(np.append(begins, len(keys)))
        totals = np.add.reduceat(counts, begins)
        taken = _discounts(counts)[np.minimum(counts, 3)]  # (n-grams,)
        freed = np.add.reduceat(taken, begins) / totals
        return cls(keys, (counts - taken) / np.repeat(totals, sizes), after_context[begins], freed)

    def interpolate(self, keys: Keys, lower: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """The probabilities of these n-grams' last bytes, given those of the order below."""
        at, known = _find(self.keys, keys)
        share = np.where(known, self.shares[at], 0.0)
        at, known = _find(self.contexts, keys >> np.uint64(8))
        return share + np.where(known, self.freed[at], 1.0) * lower


class ByteModel:
    """An n-gram model over bytes, fitted by `fit`; `order` is how many bytes an n-gram has, the predicted one included.

    A text, to be learnt or to be measured, stands after a boundary.
    """

    def __init__(self, orders: list[_Order]) -> None:
        self._orders = orders

    @classmethod
    def fit(cls, text: bytes, order: int = 5) -> Self:
        """The model of a text; `order` is from 1 to 7."""
        assert 1 <= order <= _MOST
        padded = _padded(text, order)
        keys, counts = _counted(padded, order)
        orders = [_Order.of(keys, counts)]
        for length in range(order - 1, 0, -1):
            # Each longer n-gram that was seen, without its first byte, is one that was seen to follow a byte.
            keys, counts = np.unique(keys & np.uint64(256**length - 1), return_counts=True)
            orders.append(_Order.of(keys, counts))
        return cls(orders[::-1])

    @property
    def order(self) -> int:
        return len(self._orders)

    def probabilities(self, text: bytes) -> npt.NDArray[np.float64]:
        """What the model gave each byte of a text before it came. Shapes: (N,)."""
        keys, places = np.unique(_keys(_padded(text, self.order), self.order), return_inverse=True)
        return self._of_keys(keys)[places]

    def bits(self, text: bytes) -> float:
        """The bits that coding a text by the model's probabilities takes."""
        keys, counts = _counted(_padded(text, self.order), self.order)
        return float(-(counts * np.log2(self._of_keys(keys))).sum())

    def _of_keys(self, keys: Keys) -> npt.NDArray[np.float64]:
        probabilities = np.full(len(keys), 1 / 256)
        for length, order in enumerate(self._orders, 1):
            probabilities = order.interpolate(keys & np.uint64(256**length - 1), probabilities)
        return probabilities


def word_bits(train: bytes, validation: bytes) -> float:
    """The bits of a text by how often its words occur in another, words never seen being spelt byte by byte.

    A word is a run of letters and digits, or any one other byte. A word that was not seen takes the escape of Witten &
    Bell 1991, method C, and its bytes, with an end, by their frequency within words seen once. This is a code: since
    spelling could name a seen word too, its probabilities add up to somewhat less than 1.
    """
    counts = Counter(_WORD.findall(train))
    escape = math.log2(sum(counts.values()) + len(counts))  # bits to say one of all
    rare = Counter(b"".join(seen + b"\xff" for seen, count in counts.items() if count == 1))
    total = sum(rare.values()) + 256

    def spelt(unseen: bytes) -> float:
        letters = -sum(math.log2((rare[byte] + 1) / total) for byte in unseen + b"\xff")
        return letters + escape - math.log2(max(1, len(counts)))

    return sum(
        times * (escape - math.log2(counts[token]) if token in counts else spelt(token))
        for token, times in Counter(_WORD.findall(validation)).items()
    )


def _padded(text: bytes, order: int) -> Bytes:
    return np.frombuffer(bytes([BOUNDARY]) * (order - 1) + text, dtype=np.uint8)


def _keys(padded: Bytes, length: int) -> Keys:
    """The n-grams of so many bytes at every place. Shapes: (N - length + 1,)."""
    count = max(0, len(padded) - length + 1)
    keys = np.zeros(count, dtype=np.uint64)
    for offset in range(length):
        keys <<= np.uint64(8)
        keys |= padded[offset : offset + count]
    return keys


def _counted(padded: Bytes, length: int) -> tuple[Keys, npt.NDArray[np.int64]]:
    """The n-grams of a text, sorted, and how often each occurs; the text is gone through in blocks."""
    keys, counts = np.empty(0, np.uint64), np.empty(0, np.int64)
    edges = [*range(0, max(1, len(padded) - length + 1), _BLOCK), len(padded) - length + 1]
    for start, end in pairwise(edges):
        block, seen = np.unique(_keys(padded[start : end + length - 1], length), return_counts=True)
        if not len(keys):
            keys, counts = block, seen
            continue
        both, places = np.unique(np.concatenate([keys, block]), return_inverse=True)
        keys, counts = both, np.bincount(places, np.concatenate([counts, seen])).astype(np.int64)
    return keys, counts


def _discounts(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """What is taken off a count of 0, 1, 2, and 3 or more, from how many counts there are of each.

    Where there are too few to tell, it is Ney's one discount for all, or a half. Shapes: (4,).
    """
    n: list[int] = np.bincount(np.minimum(counts, 5), minlength=6).tolist()
    if not (n[1] and n[2]):
        return np.array([0, 0.5, 0.5, 0.5])
    ney = n[1] / (n[1] + 2 * n[2])
    modified = [k - (k + 1) * ney * n[k + 1] / n[k] if n[k] and n[k + 1] else ney for k in (1, 2, 3)]
    return np.array([0, *(discount if discount > 0 else ney for discount in modified)])


def _is_first(values: Keys) -> npt.NDArray[np.bool_]:
    """Of sorted values, those that differ from the one before."""
    first = np.ones(len(values), dtype=bool)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return first


def _find(values: Keys, wanted: Keys) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """Where the wanted stand among sorted values, and whether they do."""
    at = np.minimum(np.searchsorted(values, wanted), len(values) - 1)
    return at, values[at] == wanted
