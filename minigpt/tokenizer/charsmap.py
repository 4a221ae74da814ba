"""Checks SentencePiece's table of replaced characters, which the `tokenizers` library reads without checks.

The table is a double-array trie of 32-bit units, and the replacements with a zero byte after each. A unit has its label
in the lowest 8 bits, a flag for a replacement in bit 8, and the distance to its children above; bit 31 marks the unit
that holds where a replacement begins.
Source: google/sentencepiece, normalizer.cc; s-yata/darts-clone, darts.h.
"""

import base64
import binascii

import numpy as np

from minigpt.errors import TokenizerError

_MAX_REPLACEMENT = 64  # bytes; the longest of Unicode's NFKC has 33
_DAMAGED = "its precompiled_charsmap is damaged"


def check_charsmap(encoded: str | None) -> float:
    """How many characters the table can make of one, at most.

    Raises: TokenizerError if it is damaged.
    """
    if not encoded:
        return 1.0
    try:
        content = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise TokenizerError(_DAMAGED) from error
    size = int.from_bytes(content[:4], "little")
    units, texts = content[4 : 4 + size], content[4 + size :]
    # Children are found by an exclusive or with a byte, so that whole blocks of 256 units stay in the array.
    if len(content) < 4 or len(units) != size or size % 1024 or not size:
        raise TokenizerError(_DAMAGED)
    try:
        texts.decode()
    except UnicodeDecodeError as error:
        raise TokenizerError(_DAMAGED) from error
    array = np.frombuffer(units, "<u4").astype(np.int64)
    children = np.arange(len(array)) ^ ((array >> 10) << ((array & (1 << 9)) >> 6))
    nodes = array < 1 << 31
    if (children[nodes] >= len(array)).any():
        raise TokenizerError(_DAMAGED)
    values = array[children[nodes & ((array >> 8) & 1 == 1)]] & (2**31 - 1)
    characters = np.frombuffer(texts, np.uint8)
    if (values > len(characters)).any():
        raise TokenizerError(_DAMAGED)
    if ((np.append(characters, 0)[values] & 0xC0) == 0x80).any():  # within a character
        raise TokenizerError(_DAMAGED)
    longest = max(map(len, texts.split(b"\0")))
    if longest > _MAX_REPLACEMENT:
        raise TokenizerError(f"its precompiled_charsmap must not replace a character by {longest} bytes")
    return max(1.0, float(longest))
