"""Reads the files of a text in blocks of whole lines and gives the line and byte of every character.

Files of any size are read in constant memory. Bytes that are invalid in a file's encoding become lone surrogates.
"""

import codecs
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from minigpt.chat_logs.exports import export_app
from minigpt.chat_logs.json_files import JsonForm, json_form, json_values
from minigpt.chat_logs.transcript import unmarked
from minigpt.data.encodings import MARK_BYTES
from minigpt.data.records import read_record, records_of
from minigpt.data.source_files import ByteStream, SourceFile, open_source
from minigpt.data.sources import BLOCK_SIZE, Scan

LINE_END = re.compile(r"\r\n?|\n")

# Halves of a surrogate pair, which JSON can escape. Other surrogates are invalid bytes, in UTF-8 from 0x80 on.
_HALF_PAIR = re.compile("[\ud800-\udc7f\udd00-\udfff]")
_HALF_PAIR_RECODED = re.compile("[\ud800-\udbff\udd00-\udfff]")
_LONGEST_BLOCK = 16 * BLOCK_SIZE  # bytes of a block in a text without line endings


@dataclass(frozen=True)
class Location:
    """A location in a file: the line, counted from 1, and the byte, counted from 0, in the uncompressed file.

    In a `.jsonl` file, `byte` is where the record's line begins. In a `.parquet` file, a JSON array and an export of
    chats, `line` is the row or the number of the record, and `byte` 0.
    In a file that is not UTF-8, `byte` is None.
    """

    file: str
    line: int
    byte: int | None

    def __str__(self) -> str:
        return f"{self.file}:{self.line:,}" + ("" if self.byte is None else f" (byte {self.byte:,})")


@dataclass
class TextBlock:
    """Whole lines of a file; `line` and `byte` are the location of its first character."""

    file: SourceFile
    text: str
    line: int
    byte: int | None
    size: int = 0  # bytes of the file
    is_record: bool = False  # one line of a .jsonl file, whose text may have several lines

    def locate(self, index: int) -> Location:
        """The location of a character of the block."""
        if self.is_record:
            return Location(self.file.name, self.line, self.byte)
        before = self.text[:index]
        byte = None if self.byte is None else self.byte + len(before.encode(errors="surrogateescape"))
        return Location(self.file.name, self.line + len(LINE_END.findall(before)), byte)


def find_passages(found: Scan, passages: Sequence[str]) -> dict[str, list[Location]]:
    """The first two locations of each passage."""
    locations: dict[str, list[Location]] = {passage: [] for passage in passages if passage}
    longest = max(map(len, locations), default=0)
    before: TextBlock | None = None
    for block in blocks(found):
        if before and not block.is_record and before.file is block.file:  # a passage may cross two blocks
            tail_start = max(0, len(before.text) - longest)
            if before.text[tail_start - 1 : tail_start + 1] == "\r\n":  # one line ending, not two
                tail_start -= 1
            start = before.locate(tail_start)
            block = TextBlock(block.file, before.text[tail_start:] + block.text, start.line, start.byte)
        for passage, known in locations.items():
            index = block.text.find(passage)
            while index >= 0 and len(known) < 2:
                if (location := block.locate(index)) not in known:
                    known.append(location)
                index = block.text.find(passage, index + 1)
        before = block
        if all(len(known) == 2 for known in locations.values()):
            break
    return locations


def blocks(found: Scan) -> Iterator[TextBlock]:
    """The text of all files, unchanged, in blocks of whole lines."""
    for file in found.files:
        if file.is_binary or export_app(file):
            with_errors = replace(file, decoding=file.decoding._replace(errors="surrogateescape"))
            rows = records_of(with_errors, file.reading.text_key) or ()
            for number, record in enumerate(rows, 1):
                yield TextBlock(file, unmarked(record.text), number, 0, is_record=True)
            continue
        errors = "surrogatepass" if file.is_recoded else "surrogateescape"
        with open_source(replace(file, decoding=file.decoding._replace(errors=MARK_BYTES))) as stream:
            if form := json_form(file, file.reading.text_key):
                yield from _records(file, stream, form, file.reading.text_key, errors)
            else:
                yield from _plain_blocks(file, stream, errors)


def _plain_blocks(file: SourceFile, stream: ByteStream, errors: str) -> Iterator[TextBlock]:
    line, byte, pending = 1, 0, b""
    while True:
        read = stream.read(BLOCK_SIZE)
        pending += read
        if not byte and pending.startswith(codecs.BOM_UTF8):
            pending, byte = pending[3:], 3
        end = len(pending) if not read else pending.rfind(b"\n") + 1
        if not end and len(pending) >= _LONGEST_BLOCK:
            end = pending.rfind(b"\r", 0, len(pending) - 1) + 1 or _complete_length(pending)
        if end:
            text = pending[:end].decode(errors=errors)
            yield TextBlock(file, text, line, None if file.is_recoded else byte, end)
            line += len(LINE_END.findall(text))
            pending, byte = pending[end:], byte + end
        if not read:
            return


def _records(file: SourceFile, stream: ByteStream, form: JsonForm, key: str, errors: str) -> Iterator[TextBlock]:
    half_pair = _HALF_PAIR_RECODED if file.is_recoded else _HALF_PAIR
    for number, start, size, value, location in json_values(form, file.name, stream, errors):
        text = half_pair.sub("\ufffd", unmarked(read_record(value, key, location).text))
        yield TextBlock(file, text, number, None if file.is_recoded else start, size, is_record=True)


def _complete_length(text: bytes) -> int:
    """The length of the text without an incomplete UTF-8 character at its end."""
    end = len(text) - 1
    while end > len(text) - 4 and text[end] & 0xC0 == 0x80:
        end -= 1
    return end if text[end] >= 0xC0 else len(text)
