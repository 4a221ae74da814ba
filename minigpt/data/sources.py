"""Sources of text: reads files, folders and standard input as one stream of documents.

Documents are yielded in pieces, so that no document has to fit into memory.
"""

import codecs
import hashlib
import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from minigpt.config import ReadingConfig
from minigpt.data.find_files import find_files
from minigpt.data.records import Record, conversations, records_of
from minigpt.data.source_files import (
    ByteStream,
    Decoding,
    SourceFile,
    not_text,
    open_source,
    skip_bom,
    undecodable,
)
from minigpt.errors import DataError
from minigpt.tokenizer.vocabulary import END_OF_TEXT

BLOCK_SIZE = 2**20  # bytes per read
MANY_DOCUMENTS = 4096  # a scan records the lengths of at most this many

_HASH_BYTES = 8  # of a document: among a billion different ones, one in 37 such texts is taken for another
_MAX_BLANK = 2**25  # characters of white space before the first other character of a document
_TEXT_END, _CONVERSATION_END = b"\xff", b"\xfe"  # bytes that never occur in UTF-8

Piece = tuple[str, bool]  # a piece of a document, and whether it is the document's last
Document = tuple[str, bool, bool]  # a piece, whether it is the last, and whether the document is a conversation


@dataclass(frozen=True, kw_only=True)
class Scan:
    """The result of one pass over the sources; `pieces` reads them again."""

    files: tuple[SourceFile, ...]
    skipped: tuple[str, ...]  # files in folders that are not text
    notes: tuple[str, ...]  # sentences on documents and models in folders that were skipped too
    text_bytes: int  # in UTF-8, without separators between documents
    n_documents: int
    n_conversations: int  # documents that are transcripts of a chat log
    n_unlearned: int  # messages of these with weight 0
    document_lengths: tuple[int, ...]  # characters of the first MANY_DOCUMENTS documents
    content_hash: str
    duplicates: tuple[int, ...] = ()  # the numbers of documents that are dropped, counted from 0; others count above

    @property
    def kept_hash(self) -> str:
        """The hash of the documents that are not dropped."""
        if not self.duplicates:
            return self.content_hash
        return hashlib.sha256(json.dumps([self.content_hash, *self.duplicates]).encode()).hexdigest()

    @property
    def has_speakers(self) -> bool:
        """Whether every document is a conversation, so that each part of the text has a speaker."""
        return self.n_conversations == self.n_documents

    def pieces(self, *, marked: bool = False) -> Iterator[Piece]:
        """All documents, piece by piece; if `marked`, with the marks of messages that are not learned.

        Raises: DataError as `scan`; at the end, if the text is no longer the one that was scanned.
        """
        digest = hashlib.sha256()
        found = _hashed(_documents(self.files), digest)
        duplicates, number = iter((*self.duplicates, -1)), 0
        dropped = next(duplicates)
        for text, ends_document, is_conversation in found:
            if number != dropped:
                yield _unmarked(text) if is_conversation and not marked else text, ends_document
            elif ends_document:
                dropped = next(duplicates)
            number += ends_document
        if digest.hexdigest() != self.content_hash:
            raise DataError(f"{self.files[0].name} or another file changed while it was read; run the command again")

    def pieces_of(self, file: SourceFile) -> Iterator[Piece]:
        """The documents of one of the files, piece by piece."""
        for text, ends_document, is_conversation in _documents([file]):
            yield _unmarked(text) if is_conversation else text, ends_document


def scan(
    sources: str | Path | Sequence[str | Path],
    *,
    measure: "Measure | None" = None,
    **settings: Any,
) -> Scan:
    """Finds the files of these sources and reads them once, in constant memory, to measure their text.

    A source is a file, a folder, a glob, or `-` for standard input. Of a folder, all text files are read recursively in
    sorted order, except hidden ones and those of models. Files may be plain text, or `.jsonl` with the text or the
    conversation under `text_key`, these compressed by gzip or zstd or not, or of a format that an edge reads. The
    literal "<|endoftext|>" separates documents; documents of white space only are skipped.

    `measure` reads the files, by default `measure_text`. The other settings are those of `ReadingConfig`.

    Raises: DataError for a source that is missing, has no text, or cannot be decoded; ConfigError for a setting that is
    not valid.
    """
    reading = ReadingConfig(**settings)
    several = [sources] if isinstance(sources, str | Path) else sources
    found, skipped, notes = find_files(several, Decoding(reading.encoding, reading.encoding_errors))
    files = [replace(file, reading=reading) for file in found]
    if (logs := conversations()) is not None:
        notes += logs.notes(files, reading.text_key)
    measured = (measure or measure_text)(files)
    if measured["n_unlearned"]:
        notes.append(f"messages with weight 0, which are read but not learned: {measured['n_unlearned']:,}")
    return Scan(files=tuple(files), skipped=tuple(skipped), notes=tuple(notes), **measured)


Measure = Callable[[Sequence[SourceFile]], dict[str, Any]]


def measure_text(files: Sequence[SourceFile], seen: set[bytes] | None = None) -> dict[str, Any]:
    """Reads the files: the fields of `Scan` that describe their text.

    With `seen`, the hashes of other documents, documents that are equal to one of these or to an earlier one of this
    text are dropped, and the hashes of the rest are added.
    """
    digest, of_document, logs = hashlib.sha256(), hashlib.blake2b(digest_size=_HASH_BYTES), conversations()
    lengths, duplicates = array("q"), array("q")
    number = size = length = text_bytes = n_conversations = n_unlearned = 0
    for piece, ends, is_conversation in _hashed(_documents(files), digest):
        encoded = piece.encode()
        size += len(encoded)
        length += len(piece)
        if seen is not None:
            of_document.update(encoded)
        if not ends:
            continue
        if seen is not None and (own := of_document.digest()) in seen:
            duplicates.append(number)
        else:
            if seen is not None:
                seen.add(own)
            text_bytes += size
            n_conversations += is_conversation
            n_unlearned += logs.count_unlearned(piece) if is_conversation and logs else 0
            if len(lengths) < MANY_DOCUMENTS:
                lengths.append(length)
        number, size, length = number + 1, 0, 0
        of_document = hashlib.blake2b(digest_size=_HASH_BYTES)
    if number == len(duplicates):
        what = f"{files[0].name} contains" if len(files) == 1 else f"the {len(files)} files contain"
        raise DataError(f"{what} {'only documents of other texts' if number else 'no text'}; give a file with text")
    return {
        "text_bytes": text_bytes,
        "n_documents": number - len(duplicates),
        "n_conversations": n_conversations,
        "n_unlearned": n_unlearned,
        "document_lengths": tuple(lengths),
        "content_hash": digest.hexdigest(),
        "duplicates": tuple(duplicates),
    }


def _hashed(found: Iterable[Document], digest: "hashlib._Hash") -> Iterator[Document]:
    """The same documents, each added to the digest when the next is asked for."""
    for piece, ends, is_conversation in found:
        digest.update(piece.encode())
        if ends:
            digest.update(_CONVERSATION_END if is_conversation else _TEXT_END)
        yield piece, ends, is_conversation


def _documents(files: Iterable[SourceFile]) -> Iterator[Document]:
    """The documents of all files, except those of white space only."""
    for file in files:
        records = records_of(file, file.reading.text_key)
        if records is not None:
            yield from _record_documents(file.name, records)
            continue
        with open_source(file) as stream:
            pieces = _split_documents(_text_blocks(file.name, stream, file.reading.encoding_errors))
            yield from ((*piece, False) for piece in _skip_blank(file.name, pieces))


def _unmarked(transcript: str) -> str:
    """A transcript without the marks of messages that are not learned."""
    logs = conversations()
    return transcript if logs is None else logs.unmarked(transcript)


def _record_documents(name: str, records: Iterable[Record]) -> Iterator[Document]:
    """The documents of a file's records; a text may have several."""
    for text, is_conversation in records:
        if is_conversation:
            yield text, True, True
        else:
            yield from ((*piece, False) for piece in _skip_blank(name, _split_documents([text])))


def _split_documents(blocks: Iterable[str]) -> Iterator[Piece]:
    """Splits the blocks of one text into documents; a separator may cross two blocks."""
    pending = ""
    for block in blocks:
        *complete, rest = (pending + block).split(END_OF_TEXT)
        for document in complete:
            yield document, True
        settled = max(0, len(rest) - len(END_OF_TEXT) + 1)  # the rest may be the start of a separator
        yield rest[:settled], False
        pending = rest[settled:]
    yield pending, True


def _skip_blank(name: str, pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Skips the documents of white space only; the first piece of every other document has other characters."""
    leading: list[str] | None = []  # the document's leading white space; None after its first other character
    length = 0
    for piece, ends in pieces:
        if leading is not None and not piece.isspace() and piece:
            yield "".join(leading) + piece, ends
            leading = None
        elif leading is None:
            yield piece, ends
        else:
            leading.append(piece)
            if (length := length + len(piece)) > _MAX_BLANK:
                raise DataError(f"{name} has more than {_MAX_BLANK:,} characters of white space; remove them")
        if ends:
            leading, length = [], 0


def _text_blocks(name: str, stream: ByteStream, errors: str) -> Iterator[str]:
    """A plain text, block by block."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors)
    offset, is_start = skip_bom(name, stream), True
    while True:
        block = stream.read(BLOCK_SIZE)
        pending = len(decoder.getstate()[0])  # bytes of an incomplete character at the end of the last block
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            raise undecodable(name, offset - pending, error) from error
        if is_start and "\0" in text:
            raise not_text(name, block)
        yield text
        if not block:
            return
        is_start = False
        offset += len(block)
