"""CRC-32C, the checksum of TensorFlow's checkpoints, vectorized with numpy.

A checksum is the remainder of a polynomial division over GF(2). Appending zero bytes to a message is a linear map of
the remainder's 32 bits. So the message is cut into rows. The sum of the rows so far is shifted past the next row and
added to it, thousands of 32-bit words at a time. One word remains, with the same remainder as the whole message.
"""

from functools import cache

import numpy as np
import numpy.typing as npt

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, the lowest bit first
_ROW = 16  # rows of 2 ** 16 bytes stay in the processor's cache
_MASK_DELTA = 0xA282EAD8

Words = npt.NDArray[np.uint32]


def crc32c(data: bytes | npt.NDArray[np.uint8]) -> int:
    """The checksum of `data`.

    Source: RFC 3720, appendix B.4; M. Adler, crc32_combine in zlib, for appending zeros.
    """
    message = np.frombuffer(data, np.uint8)
    row = 1 << _ROW
    words = np.zeros(row // 4, "<u4")
    first = len(message) % row
    words.view(np.uint8)[row - first :] = message[:first]  # leading zeros do not change the remainder
    for start in range(first, len(message), row):
        words = _append_zeros(words, _ROW) ^ message[start : start + row].view("<u4")
    for power in range(_ROW - 1, 1, -1):
        half = len(words) // 2
        words = _append_zeros(words[:half], power) ^ words[half:]
    register = np.full(1, 0xFFFFFFFF, "<u4")  # the initial value of the division
    for power in range(len(message).bit_length()):
        if len(message) >> power & 1:
            register = _append_zeros(register, power)
    return int((_append_zeros(words, 2) ^ register)[0]) ^ 0xFFFFFFFF


def unmask(stored: int) -> int:
    """The checksum from TensorFlow's stored form, which is rotated so that checked data may contain checksums.

    Source: tensorflow/core/lib/hash/crc32c.h.
    """
    rotated = (stored - _MASK_DELTA) & 0xFFFFFFFF
    return (rotated >> 17 | rotated << 15) & 0xFFFFFFFF


def _append_zeros(words: Words, power: int) -> Words:
    """The remainders after 2 ** power zero bytes are appended to each message."""
    low, high = _tables(power)
    halves = words.view("<u2")
    return low[halves[0::2]] ^ high[halves[1::2]]


@cache
def _tables(power: int) -> tuple[Words, Words]:
    """The effect of 2 ** power appended zero bytes on each value of a word's lower and upper half."""
    bits = np.left_shift(np.uint32(1), np.arange(32, dtype="<u4"))
    if power == 0:
        for _ in range(8):
            bits = bits >> 1 ^ (bits & 1) * np.uint32(_POLYNOMIAL)
    else:
        bits = _append_zeros(_append_zeros(bits, power - 1), power - 1)
    table = np.zeros((2, 1 << 16), "<u4")
    for bit in range(16):
        table[:, 1 << bit : 2 << bit] = table[:, : 1 << bit] ^ bits[[bit, 16 + bit], None]
    return table[0], table[1]
