"""CRC-32C, the checksum that TensorFlow keeps of every tensor, at numpy's speed; it knows no files.

A checksum is the remainder of a polynomial division over GF(2), and appending zero bytes to a message is a linear map
of that remainder's 32 bits. So a message is cut into rows, and each row so far is moved past the next and added to it,
thousands of words at once: what is left in the end is one word with the same remainder as the whole message.
"""

from functools import cache

import numpy as np
import numpy.typing as npt

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, the lowest bit first
_ROW = 16  # rows are of 2 ** 16 bytes, so that what is worked on stays in the processor's cache
_MASK_DELTA = 0xA282EAD8

Words = npt.NDArray[np.uint32]


def crc32c(data: bytes | npt.NDArray[np.uint8]) -> int:
    """The checksum of some bytes.

    Source: RFC 3720, appendix B.4; M. Adler, crc32_combine in zlib, for the appended zeros.
    """
    message = np.frombuffer(data, np.uint8)
    row = 1 << _ROW
    words = np.zeros(row // 4, "<u4")
    first = len(message) % row
    words.view(np.uint8)[row - first :] = message[:first]  # zeros in front leave the remainder as it is
    for start in range(first, len(message), row):
        words = _append_zeros(words, _ROW) ^ message[start : start + row].view("<u4")
    for power in range(_ROW - 1, 1, -1):
        half = len(words) // 2
        words = _append_zeros(words[:half], power) ^ words[half:]
    register = np.full(1, 0xFFFFFFFF, "<u4")  # where the division begins
    for power in range(len(message).bit_length()):
        if len(message) >> power & 1:
            register = _append_zeros(register, power)
    return int((_append_zeros(words, 2) ^ register)[0]) ^ 0xFFFFFFFF


def unmask(stored: int) -> int:
    """The checksum that TensorFlow stored, which it turns and shifts so that checksums may stand in checked data.

    Source: tensorflow/core/lib/hash/crc32c.h.
    """
    turned = (stored - _MASK_DELTA) & 0xFFFFFFFF
    return (turned >> 17 | turned << 15) & 0xFFFFFFFF


def _append_zeros(words: Words, power: int) -> Words:
    """The remainders of messages that 2 ** power zero bytes are appended to."""
    low, high = _tables(power)
    halves = words.view("<u2")
    return low[halves[0::2]] ^ high[halves[1::2]]


@cache
def _tables(power: int) -> tuple[Words, Words]:
    """What each value of the lower and of the upper half of a word becomes when 2 ** power zero bytes are appended."""
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
