"""Samples a long text in evenly spaced blocks."""

from collections.abc import Iterator

_BLOCK = 2**16  # bytes
_MIN_BLOCKS = 8


def even_sample(text: bytes, most: int) -> bytes:
    """The text, or evenly spaced blocks of it that add up to about `most` bytes."""
    if len(text) <= most:
        return text
    return b"".join(text[start:end] for start, end in even_blocks(len(text), most))


def even_blocks(length: int, most: int, block: int = _BLOCK) -> Iterator[tuple[int, int]]:
    """The start and end of evenly spaced blocks that cover about `most` of `length` items, or all of them."""
    if length <= most:
        yield 0, length
        return
    block = min(block, max(1, most // _MIN_BLOCKS))
    count = max(1, most // block)
    for index in range(count):
        start = index * (length - block) // max(1, count - 1)
        yield start, start + block
