"""Reads messages of Protocol Buffers that a stranger may have written: nothing is read beyond their end."""

from collections.abc import Iterator


def read_varint(content: bytes, position: int) -> tuple[int, int]:
    """A number in groups of seven bits, the lowest first, and the position after it.

    Raises: ValueError if it does not end.
    """
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(content):
            break
        byte = content[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("an integer does not end")


def protobuf_fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The numbers of the fields of a protocol buffer and their values: varints as numbers, all others as bytes.

    Source: protobuf.dev/programming-guides/encoding.
    Raises: ValueError if it is damaged.
    """
    position = 0
    while position < len(message):
        tag, position = read_varint(message, position)
        kind = tag & 7
        if kind == 0:
            value, position = read_varint(message, position)
            yield tag >> 3, value
            continue
        if kind == 2:
            size, position = read_varint(message, position)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"a value has wire type {kind}")
        if position + size > len(message):
            raise ValueError("a value lies outside of its message")
        yield tag >> 3, message[position : position + size]
        position += size
