"""Damaged copies of files, at random."""

import random
import re
from collections.abc import Iterator

_TOKENS = re.compile(rb"<[^<>]*>?|\s+|[^\s<]+")
_TEXTS = (b"..", b"/", b"\x00", b"\xff" * 8, b"9" * 12, b"-1", b"null", b"[]", b"{}", b'""', b"1e999", b"NaN", b"true")


def mutations(data: bytes, seed: int) -> Iterator[bytes]:
    """Endless damaged copies of `data`, the same ones for a seed; most damage is in the first kilobytes."""
    draw = random.Random(seed)
    while True:
        damaged = bytearray(data)
        for _ in range(draw.choice((1, 1, 1, 2, 3, 8))):
            if not damaged:
                break
            reach = min(len(damaged), draw.choice((16, 256, 4096, len(damaged))))
            at = draw.randrange(reach) if draw.random() < 0.8 else len(damaged) - 1 - draw.randrange(reach)
            match draw.randrange(8):
                case 0:
                    damaged[at] ^= 1 << draw.randrange(8)
                case 1:
                    damaged[at] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)))
                case 2:
                    width = draw.choice((2, 4, 8))
                    number = draw.choice((0, 1, 2 ** (8 * width) - 1, 2 ** (8 * width - 1), draw.randrange(2**16)))
                    damaged[at : at + width] = number.to_bytes(width, draw.choice(("little", "big")))
                case 3:
                    del damaged[at:]
                case 4:
                    del damaged[at : at + draw.choice((1, 2, 8, 64))]
                case 5:
                    damaged[at:at] = draw.choice(_TEXTS)
                case 6:
                    other, size = draw.randrange(len(damaged)), draw.choice((1, 8, 64))
                    damaged[at : at + size] = damaged[other : other + size]
                case _:
                    text = draw.choice(_TEXTS)
                    damaged[at : at + len(text)] = text
        yield bytes(damaged)


def rearrange(data: bytes, draw: random.Random, longest: int) -> bytes:
    """A copy of a text with markup whose tags, words and spaces are moved, repeated, nested or dropped."""
    tokens = _TOKENS.findall(data)
    for _ in range(draw.choice((1, 1, 2, 4))):
        if not tokens:
            break
        start = draw.randrange(len(tokens))
        end = start + draw.choice((1, 1, 2, 4, 16, len(tokens)))
        part = tokens[start:end]
        at = draw.randrange(len(tokens))
        match draw.randrange(4):
            case 0:
                del tokens[start:end]
            case 1:
                tokens[at:at] = part
            case 2:
                most = longest // max(1, sum(map(len, part)))
                tokens[start:end] = part * min(most, draw.choice((2, 2, 2, 10, 10, 100, 1000, 100_000)))
            case _:
                del tokens[start:end]
                tokens[at:at] = part
    return b"".join(tokens)[:longest]
