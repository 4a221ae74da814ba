"""N-gram models of a text: bytes by interpolated Kneser-Ney with modified discounts, and words by frequency.

Every order subtracts a discount from its counts and gives the freed probability to the next lower order. The lowest is
the uniform distribution over 256 bytes. Below the highest order, the count of an n-gram is the number of different
bytes that precede it. Each distribution over the 256 bytes sums to 1.
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

BOUNDARY = 0xFF  # the byte between documents, and before the first; it never occurs in UTF-8

_BLOCK = 2**23  # bytes whose n-grams are sorted together: 64 MB
_WORD = re.compile(rb"[0-9A-Za-z\x80-\xfe]+|[^0-9A-Za-z\x80-\xfe]")
_MOST_ORDER = 7  # bytes of an n-gram; one less than a key can hold


@dataclass(frozen=True)
class _Order:
    """The probabilities of the n-grams of one length.

    `keys` are the n-grams, sorted; a key holds an n-gram's bytes, the last in the lowest bits. `discounted` is each
    n-gram's probability in its context after the discount. `contexts` are the keys of the contexts, and `freed` the
    probability that each gives to the next lower order.
    """

    keys: Keys
    discounted: npt.NDArray[np.float64]
    contexts: Keys
    freed: npt.NDArray[np.float64]

    @classmethod
    def from_counts(cls, keys: Keys, counts: npt.NDArray[np.int64]) -> Self:
        contexts = keys >> np.uint64(8)
        starts = np.flatnonzero(_is_first(contexts))
        sizes = np.diff(np.append(starts, len(keys)))
        totals = np.add.reduceat(counts, starts)
        discounts = _discounts(counts)[np.minimum(counts, 3)]  # (n-grams,)
        freed = np.add.reduceat(discounts, starts) / totals
        return cls(keys, (counts - discounts) / np.repeat(totals, sizes), contexts[starts], freed)

    def interpolate(self, keys: Keys, lower: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """The probabilities of the last bytes of these n-grams, given those of the next lower order."""
        if not len(self.keys):
            return lower
        index, is_known = _find(self.keys, keys)
        discounted = np.where(is_known, self.discounted[index], 0.0)
        index, is_known = _find(self.contexts, keys >> np.uint64(8))
        return discounted + np.where(is_known, self.freed[index], 1.0) * lower


class ByteNgramModel:
    """An n-gram model over bytes, made by `fit`.

    `order` is the number of bytes in an n-gram, with the predicted one. A text is preceded by boundaries.
    """

    def __init__(self, orders: list[_Order]) -> None:
        self._orders = orders

    @classmethod
    def fit(cls, text: bytes, order: int = 5) -> Self:
        """Fits the model to a text; `order` is from 1 to 7. After an empty text, every byte is equally likely."""
        assert 1 <= order <= _MOST_ORDER
        keys, counts = _counted(_padded(text, order), order)
        orders = [_Order.from_counts(keys, counts)]
        for length in range(order - 1, 0, -1):
            # Each distinct longer n-gram, without its first byte, counts once: for one byte that precedes it.
            keys, counts = np.unique(keys & np.uint64(256**length - 1), return_counts=True)
            orders.append(_Order.from_counts(keys, counts))
        return cls(orders[::-1])

    @property
    def order(self) -> int:
        return len(self._orders)

    def probabilities(self, text: bytes) -> npt.NDArray[np.float64]:
        """The probability of each byte of a text, given those before it. Shapes: (N,)."""
        keys, inverse = np.unique(_keys(_padded(text, self.order), self.order), return_inverse=True)
        return self._probabilities_of(keys)[inverse]

    def bits(self, text: bytes) -> float:
        """The cross-entropy of a text, in bits."""
        keys, counts = _counted(_padded(text, self.order), self.order)
        return float(-(counts * np.log2(self._probabilities_of(keys))).sum())

    def _probabilities_of(self, keys: Keys) -> npt.NDArray[np.float64]:
        probabilities = np.full(len(keys), 1 / 256)
        for length, order in enumerate(self._orders, 1):
            probabilities = order.interpolate(keys & np.uint64(256**length - 1), probabilities)
        return probabilities


def word_frequency_bits(train: bytes, validation: bytes) -> float:
    """The size of `validation` in bits, coded by the word frequencies of `train`.

    A word is a run of letters and digits, or one other byte. A new word is coded by the escape of method C (Witten &
    Bell 1991), its bytes and an end mark. The bytes have their frequency among words that occur once. The probabilities
    sum to a little less than 1, because the bytes of a known word have a code too.
    """
    counts = Counter(_WORD.findall(train))
    total_bits = math.log2(sum(counts.values()) + len(counts))
    rare = Counter(b"".join(word + b"\xff" for word, count in counts.items() if count == 1))
    total = sum(rare.values()) + 256

    def new_word_bits(word: bytes) -> float:
        byte_bits = -sum(math.log2((rare[byte] + 1) / total) for byte in word + b"\xff")
        return byte_bits + total_bits - math.log2(max(1, len(counts)))

    return sum(
        occurrences * (total_bits - math.log2(counts[word]) if word in counts else new_word_bits(word))
        for word, occurrences in Counter(_WORD.findall(validation)).items()
    )


def _padded(text: bytes, order: int) -> Bytes:
    return np.frombuffer(bytes([BOUNDARY]) * (order - 1) + text, dtype=np.uint8)


def _keys(padded: Bytes, length: int) -> Keys:
    """The n-grams of `length` bytes at every position. Shapes: (N - length + 1,)."""
    count = max(0, len(padded) - length + 1)
    keys = np.zeros(count, dtype=np.uint64)
    for offset in range(length):
        keys <<= np.uint64(8)
        keys |= padded[offset : offset + count]
    return keys


def _counted(padded: Bytes, length: int) -> tuple[Keys, npt.NDArray[np.int64]]:
    """The different n-grams of a text, sorted, and the count of each; the text is read in blocks."""
    keys, counts = np.empty(0, np.uint64), np.empty(0, np.int64)
    edges = [*range(0, max(1, len(padded) - length + 1), _BLOCK), len(padded) - length + 1]
    for start, end in pairwise(edges):
        block, block_counts = np.unique(_keys(padded[start : end + length - 1], length), return_counts=True)
        if not len(keys):
            keys, counts = block, block_counts
            continue
        merged, inverse = np.unique(np.concatenate([keys, block]), return_inverse=True)
        keys = merged
        counts = np.bincount(inverse, np.concatenate([counts, block_counts])).astype(np.int64)
    return keys, counts


def _discounts(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """The discounts of the counts 0, 1, 2, and 3 or more, estimated from the counts of counts.

    With too few counts: Ney's single discount for all, or 0.5. Shapes: (4,).
    """
    n: list[int] = np.bincount(np.minimum(counts, 5), minlength=6).tolist()
    if not (n[1] and n[2]):
        return np.array([0, 0.5, 0.5, 0.5])
    ney = n[1] / (n[1] + 2 * n[2])
    modified = [k - (k + 1) * ney * n[k + 1] / n[k] if n[k] and n[k + 1] else ney for k in (1, 2, 3)]
    return np.array([0, *(discount if discount > 0 else ney for discount in modified)])


def _is_first(values: Keys) -> npt.NDArray[np.bool_]:
    """Which of the sorted values differ from the one before."""
    first = np.ones(len(values), dtype=bool)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return first


def _find(values: Keys, wanted: Keys) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """The indices of the wanted among sorted values, and which of them occur."""
    index = np.minimum(np.searchsorted(values, wanted), len(values) - 1)
    return index, values[index] == wanted
