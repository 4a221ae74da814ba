"""Splits a text into the units that are compared: its documents, paragraphs and lines."""

import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from minigpt.data.sources import Piece

MIN_LINE, MIN_PARAGRAPH = 40, 100  # characters: shorter ones often repeat, and rightly so ("Chapter 1")

_MOST_DOCUMENT_BYTES = 200_000  # of a document that are kept; a near-duplicate search reads no more
_MOST_PENDING = 2**22  # characters without an empty line
_EMPTY_LINE = re.compile(r"\n[ \t]*\n\s*")


class Unit(NamedTuple):
    """One document, paragraph or line.

    `text` is its UTF-8, of a document the first 200 kB; `hash` and `size`, in bytes, are those of all of it.
    """

    kind: str
    text: bytes
    hash: int
    size: int


def read_units(pieces: Iterable[Piece]) -> Iterator[Unit]:
    """The units of a text: the paragraphs and lines of each document, then the document."""
    digest, beginning, size = hashlib.blake2b(digest_size=8), bytearray(), 0
    for paragraph, ends_document in _paragraphs(pieces):
        text = paragraph.encode()
        digest.update(text + b"\n\n")
        size += len(text)
        if len(beginning) < _MOST_DOCUMENT_BYTES:
            beginning += text + b"\n\n"
        if len(paragraph) >= MIN_PARAGRAPH:
            yield Unit("paragraphs", text, _hash(text), len(text))
        for line in text.split(b"\n"):
            if len(line := line.strip()) >= MIN_LINE and len(line.decode()) >= MIN_LINE:
                yield Unit("lines", line, _hash(line), len(line))
        if ends_document:
            yield Unit("documents", bytes(beginning), int.from_bytes(digest.digest(), "little"), size)
            digest, beginning, size = hashlib.blake2b(digest_size=8), bytearray(), 0


def _paragraphs(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """The text between empty lines, without white space around it; the last one of a document may be empty."""
    pending = ""
    for piece, ends_document in pieces:
        pending += piece
        if not ends_document and pending.endswith("\r"):
            continue  # the other half of a line ending may follow
        *complete, pending = _EMPTY_LINE.split(pending.replace("\r\n", "\n").replace("\r", "\n"))
        if not ends_document and len(pending) > _MOST_PENDING:
            complete, pending = [*complete, pending], ""
        for paragraph in complete:
            if stripped := paragraph.strip():
                yield stripped, False
        if ends_document:
            yield pending.strip(), True
            pending = ""


def _hash(text: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
