"""Cuts files into segments that are tokenized independently, and reads the documents of one."""

import hashlib
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BufferedReader
from typing import Any, Literal, get_args

from minigpt.data.encodings import is_utf8
from minigpt.data.parquet import read_parquet, row_group_bytes
from minigpt.data.records import json_form
from minigpt.data.source_files import SourceFile, open_source, reading
from minigpt.data.sources import Document, Piece, documents_in, record_documents
from minigpt.data.transcript import count_unlearned
from minigpt.errors import DataError
from minigpt.tokenizer.vocabulary import END_OF_TEXT

LONGEST_DOCUMENT = 2**18  # characters; a longer document becomes several, so that it can be shuffled and held out
COMPRESSION = 3  # bytes of text for a byte of a compressed file, where it is not known

_SEARCHED = 2**20  # bytes after a cut in which a boundary is looked for
_SAMPLES, _SAMPLE_SIZE = 64, 4096  # blocks of a file that identify it, and their bytes
_END = END_OF_TEXT.encode()
_LINE = re.compile(rb"\S(?=[\r\n])")
_CUT = re.compile(r"(?s).*\S(?=\s)")

Kind = Literal["bytes", "rows", "file", "files"]
KINDS: tuple[str, ...] = get_args(Kind)


@dataclass(frozen=True)
class Segment:
    """A part of a text: bytes `start` to `end` of a file, these row groups of a table, a file as a whole, or the whole
    files number `start` to `end`.

    `file` is the number of its file, or of the first of them. `size` is about how many bytes of text it has.
    """

    file: int
    kind: Kind
    start: int
    end: int
    size: int

    @property
    def files(self) -> range:
        """The numbers of its files."""
        return range(self.start, self.end) if self.kind == "files" else range(self.file, self.file + 1)


def cut(files: Sequence[SourceFile], text_key: str, size: int) -> list[Segment]:
    """The segments of files, of about `size` bytes of text each where a file can be read from the middle.

    Small files that follow one another share a segment of at most `size` bytes, except tables.

    Raises: DataError for a file that cannot be read.
    """
    segments: list[Segment] = []
    may_join = False  # whether the last segment has whole files only
    for index, file in enumerate(files):
        found = _segments_of(index, file, text_key, size)
        is_whole = len(found) == 1 and found[0].kind != "rows"
        if is_whole and may_join and segments[-1].size + found[0].size <= size:
            first = segments.pop()
            found = [Segment(first.file, "files", first.file, index + 1, first.size + found[0].size)]
        segments += found
        may_join = is_whole
    return segments


def _segments_of(index: int, file: SourceFile, text_key: str, size: int) -> list[Segment]:
    length = file.stat().st_size
    if file.is_parquet:
        return _row_groups(index, row_group_bytes(file.path, file.name, text_key), size)
    if file.is_compressed():
        return [Segment(index, "file", 0, length, length * COMPRESSION)]
    if not is_utf8(file.decoding.encoding) or (file.may_be_json and json_form(file, text_key)):
        return [Segment(index, "file", 0, length, length)]
    ends = [*range(size, length - size // 2, size), length]
    return [Segment(index, "bytes", start, end, end - start) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def _row_groups(index: int, sizes: Sequence[int], size: int) -> list[Segment]:
    """The segments of a table whose row groups have these compressed bytes of text."""
    segments, start, taken = [], 0, 0
    for group, group_size in enumerate(sizes):
        taken += group_size * COMPRESSION
        if taken >= size or group == len(sizes) - 1:
            segments.append(Segment(index, "rows", start, group + 1, max(1, taken)))
            start, taken = group + 1, 0
    return segments


def identity(file: SourceFile) -> list[object]:
    """What a file is recognized by: its size and a hash of 64 blocks of it, of all of it if it is short."""
    length, digest = file.stat().st_size, hashlib.sha256()
    with reading(file.name), file.path.open("rb") as stream:
        for number in range(_SAMPLES):
            stream.seek(max(0, length - _SAMPLE_SIZE) * number // (_SAMPLES - 1))
            digest.update(stream.read(_SAMPLE_SIZE))
    return [length, digest.hexdigest()]


def documents(files: Sequence[SourceFile], segment: Segment, text_key: str) -> Iterator[Piece]:
    """The documents of a segment of files, except those of white space only; long ones in several parts.

    Raises: DataError if a file cannot be read as what its name says.
    """
    for number in segment.files:
        yield from _parts(_documents(files[number], segment, text_key))


def _documents(file: SourceFile, segment: Segment, text_key: str) -> Iterator[Piece]:
    errors = file.decoding.errors
    if segment.kind == "rows":
        groups = range(segment.start, segment.end)
        records = read_parquet(file.path, file.name, text_key, errors, groups)
        yield from _plain(file.name, record_documents(file.name, records))
        return
    with open_source(file) as whole:
        stream, name, start = whole, file.name, 0
        if segment.kind == "bytes":
            start, end = (_boundary(whole, file, offset) for offset in (segment.start, segment.end))
            stream = BufferedReader(_Range(whole, start, end), 2**17)
            name = f"{file.name} (from byte {start:,})" if start else file.name
        found = documents_in(file, stream, text_key, errors, name=name, is_start=not start)
        yield from _plain(file.name, found)


def _plain(name: str, found: Iterable[Document]) -> Iterator[Piece]:
    for text, ends, is_conversation in found:
        if is_conversation and count_unlearned(text):
            raise DataError(
                f"{name} has a message with weight 0, and all of a text in shards is learned; add --shards off, or "
                "remove such messages"
            )
        yield text, ends


def _parts(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Documents of at most about LONGEST_DOCUMENT characters, as one piece each; cut at white space if possible."""
    buffer = ""
    for piece, ends in pieces:
        buffer += piece
        while len(buffer) > LONGEST_DOCUMENT:
            found = _CUT.match(buffer, LONGEST_DOCUMENT // 2, LONGEST_DOCUMENT)
            at = found.end() if found else LONGEST_DOCUMENT
            yield buffer[:at], True
            buffer = buffer[at:]
        if ends:
            if buffer and not buffer.isspace():
                yield buffer, True
            buffer = ""


def _boundary(stream: Any, file: SourceFile, offset: int) -> int:
    """The first place from `offset` on where a file may be cut: after a document, else after a line, else a character.

    A `.jsonl` is cut after a line. A line or a document that begins before a cut belongs to the segment before.
    """
    length = file.stat().st_size
    if offset == 0 or offset >= length:
        return min(offset, length)
    stream.seek(offset - 1)
    if file.is_json:
        while (rest := stream.readline(_SEARCHED)) and not rest.endswith(b"\n"):  # may be the end of a line only
            pass
        return int(stream.tell())
    before = min(offset, len(_END))  # a cut must not be within the name of an end
    stream.seek(offset - before)
    block = stream.read(_SEARCHED)
    if (at := block.find(_END)) >= 0:
        return offset - before + at + len(_END)
    block = block[before - 1 :]
    if line := _LINE.search(block):
        return offset - 1 + line.end()
    at = 1
    while at < len(block) and block[at] & 0xC0 == 0x80:
        at += 1
    return offset - 1 + at


class _Range(io.RawIOBase):
    """Some bytes of a file as a stream."""

    def __init__(self, stream: Any, start: int, end: int) -> None:
        stream.seek(start)
        self._stream, self._left = stream, end - start

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        block = self._stream.read(min(len(buffer), self._left))
        buffer[: len(block)] = block
        self._left -= len(block)
        return len(block)
