"""Hashes every window of a text in linear time, for windows of any length.

A window's hash is a polynomial in its bytes, computed from the polynomials of two prefixes (Karp & Rabin 1987). It is
taken modulo a prime, at two points: modulo a power of two, which is faster, some texts have many windows with the same
hash at every point (the Thue-Morse sequence is one). Equal hashes must still be verified by comparing bytes.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

WINDOW = 50  # bytes: windows of this length are hardly ever the same by chance

_BLOCK = 2**22  # windows hashed together
_PRIME = 2**31 - 1  # the product of two smaller numbers fits 64 bits
_RUN = 2**14  # bytes summed without a reduction: the sum fits 64 bits, and the arrays fit the cache

Positions = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]


class WindowHashes:
    """The hashes of all windows of a text.

    `codes` (N,) are its bytes; `preceding` (N + 1,) is the byte before each position, 256 before the first. Another
    `seed` gives other hashes.
    """

    def __init__(self, text: bytes, seed: int = 0) -> None:
        self.codes = np.frombuffer(text, dtype=np.uint8)
        self.preceding = np.concatenate([np.array([256], dtype=np.int16), self.codes])
        random = np.random.default_rng(seed)
        self._points: list[int] = random.integers(2**16, _PRIME, 2).tolist()
        self._prefix_hashes = [_prefix_hashes(self.codes, point, random) for point in self._points]

    def at(self, positions: Positions, length: int) -> Hashes:
        """The 62-bit hashes of the windows of `length` bytes that begin at these positions."""
        hashes = np.zeros(len(positions), dtype=np.uint64)
        for point, prefix_hashes in zip(self._points, self._prefix_hashes, strict=True):
            minus_power = np.uint64(_PRIME - pow(point, length, _PRIME))
            window = prefix_hashes[positions].astype(np.uint64)
            window *= minus_power
            window += prefix_hashes[positions + length]
            window %= np.uint64(_PRIME)
            hashes = hashes << np.uint64(31) | window
        return hashes

    def all(self, length: int) -> Iterator[tuple[Positions, Hashes]]:
        """The positions and hashes of every window of `length` bytes, in blocks."""
        total = len(self.preceding) - length
        for start in range(0, total, _BLOCK):
            positions = np.arange(start, min(start + _BLOCK, total))
            yield positions, self.at(positions, length)


def _prefix_hashes(codes: npt.NDArray[np.uint8], point: int, random: np.random.Generator) -> npt.NDArray[np.uint32]:
    """The polynomial of every prefix of a text at this point; its last byte is the constant term. Shapes: (N + 1,)."""
    coefficients = random.integers(1, _PRIME, 256, dtype=np.uint64)  # of each byte
    powers, inverses = _powers(point), _powers(pow(point, -1, _PRIME))
    prime = np.uint64(_PRIME)
    found = np.zeros(len(codes) + 1, dtype=np.uint32)
    for start in range(0, len(codes), _RUN):
        terms = coefficients[codes[start : start + _RUN]]
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
    """The powers 0 to _RUN - 1 of the base."""
    powers = [1]
    while len(powers) < _RUN:
        powers.append(powers[-1] * base % _PRIME)
    return np.array(powers, dtype=np.uint64)
