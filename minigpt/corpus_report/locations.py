"""A text's files as they are, in blocks of whole lines of which every character's place is known; it judges nothing.

Files of any size pass in constant memory, and bytes that are no UTF-8 pass as lone surrogates.
"""

import codecs
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from minigpt.data.sources import BLOCK_SIZE, Scan, SourceFile, open_source

LINE_END = re.compile(r"\r\n?|\n")

_LONGEST_BLOCK = 16 * BLOCK_SIZE  # of a text without line ends


@dataclass(frozen=True)
class Place:
    """Where something stands: its line, and its first byte in the (unzipped) file, both of the file as it is.

    In a `.jsonl` the byte is that at which its line begins.
    """

    file: str
    line: int
    byte: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line:,} (byte {self.byte:,})"


@dataclass
class Block:
    """Whole lines of a file, bytes that are no UTF-8 as lone surrogates; `line` and `byte` are those of its start."""

    file: SourceFile
    text: str
    line: int
    byte: int
    size: int = 0  # bytes of the file
    is_record: bool = False  # one line of a .jsonl, whose text has lines of its own

    def place(self, at: int) -> Place:
        """The place of one of its characters."""
        if self.is_record:
            return Place(self.file.name, self.line, self.byte)
        before = self.text[:at]
        byte = self.byte + len(before.encode(errors="surrogateescape"))
        return Place(self.file.name, self.line + len(LINE_END.findall(before)), byte)


def find_passages(found: Scan, passages: Sequence[str]) -> dict[str, list[Place]]:
    """Where each of some passages stands, the first two places of it."""
    places: dict[str, list[Place]] = {passage: [] for passage in passages if passage}
    reach = max(map(len, places), default=0)
    before: Block | None = None
    for block in blocks(found):
        if before and not block.is_record and before.file is block.file:  # what stands across two blocks
            tail = before.text[-reach:]
            start = before.place(len(before.text) - len(tail))
            block = Block(block.file, tail + block.text, start.line, start.byte)
        for passage, known in places.items():
            at = block.text.find(passage)
            while at >= 0 and len(known) < 2:
                if (place := block.place(at)) not in known:
                    known.append(place)
                at = block.text.find(passage, at + 1)
        before = block
        if all(len(known) == 2 for known in places.values()):
            break
    return places


def blocks(found: Scan) -> Iterator[Block]:
    """The text of all files as it stands in them, in blocks of whole lines."""
    for file in found.files:
        with open_source(file) as stream:
            if file.path.name.lower().removesuffix(".gz").endswith((".jsonl", ".ndjson")):
                yield from _records(file, stream, found.text_key)  # type: ignore[arg-type]
            else:
                yield from _plain_blocks(file, stream)  # type: ignore[arg-type]


def _plain_blocks(file: SourceFile, stream: BinaryIO) -> Iterator[Block]:
    line, byte, held = 1, 0, b""
    while True:
        read = stream.read(BLOCK_SIZE)
        held += read
        if not byte and held.startswith(codecs.BOM_UTF8):
            held, byte = held[3:], 3
        end = len(held) if not read else held.rfind(b"\n") + 1
        if not end and len(held) >= _LONGEST_BLOCK:
            end = held.rfind(b"\r", 0, len(held) - 1) + 1 or _whole_characters(held)
        if end:
            text = held[:end].decode(errors="surrogateescape")
            yield Block(file, text, line, byte, end)
            line += len(LINE_END.findall(text))
            held, byte = held[end:], byte + end
        if not read:
            return


def _records(file: SourceFile, stream: BinaryIO, key: str) -> Iterator[Block]:
    byte = 0
    for number, line in enumerate(stream, 1):
        start, byte = byte, byte + len(line)
        if line.strip(b"\xef\xbb\xbf \t\r\n"):
            text = json.loads(line.decode("utf-8-sig", "surrogateescape"))[key]
            yield Block(file, text, number, start, len(line), is_record=True)


def _whole_characters(text: bytes) -> int:
    """The length of these bytes without a character that is cut short at their end."""
    end = len(text) - 1
    while end > len(text) - 4 and text[end] & 0xC0 == 0x80:
        end -= 1
    return end if text[end] >= 0xC0 else len(text)
