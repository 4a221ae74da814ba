"""Files, folders and standard input as one stream of documents, decoded and checked; it knows no tokens.

A document is yielded in pieces, so that no document has to fit into memory.
"""

import codecs
import contextlib
import glob
import gzip
import hashlib
import json
import os
import shutil
import sys
import tempfile
import weakref
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from minigpt.errors import ConfigError, DataError
from minigpt.tokenizer.vocabulary import END_OF_TEXT

BLOCK_SIZE = 2**20  # bytes read at once
MANY_DOCUMENTS = 4096  # the lengths of so many are remembered

_SNIFFED = 2**16  # bytes of a folder's file that must look like text

Piece = tuple[str, bool]  # a piece of a document, and whether it is the document's last


@dataclass(frozen=True)
class SourceFile:
    """One file of text, and what to call it: the user's own name for it."""

    path: Path
    name: str


@dataclass(frozen=True, kw_only=True)
class Scan:
    """What one reading of the sources found; `pieces` reads them again."""

    files: tuple[SourceFile, ...]
    skipped: tuple[str, ...]  # files in folders that are not text
    text_key: str
    encoding_errors: str
    text_bytes: int  # of UTF-8, without what separates documents
    n_documents: int
    document_lengths: tuple[int, ...]  # in characters, of the first MANY_DOCUMENTS
    content_hash: str

    def pieces(self) -> Iterator[Piece]:
        """The documents, piece by piece."""
        return _documents(self.files, self.text_key, self.encoding_errors)


def scan(
    sources: str | Path | Sequence[str | Path], *, text_key: str = "text", encoding_errors: str = "strict"
) -> Scan:
    """Finds the files, reads them through once in constant memory, and tells how much text they hold.

    A source is a file, a folder (its text files, recursively and in order, but none that are hidden), a glob, or `-`
    for standard input. Files may be plain text, `.jsonl` with the text under `text_key`, and either of them gzipped.
    The literal "<|endoftext|>" separates documents, and those of white space alone are left out.

    Raises: DataError for what is missing, holds no text, or cannot be decoded. ConfigError for an unknown
    `encoding_errors`.
    """
    if encoding_errors not in ("strict", "replace"):
        raise ConfigError(f"encoding_errors ({encoding_errors!r}) must be strict or replace")
    files, skipped = _find([sources] if isinstance(sources, str | Path) else sources, encoding_errors)
    digest = hashlib.sha256()
    lengths, length, text_bytes, n_documents = array("q"), 0, 0, 0
    for piece, ends in _documents(files, text_key, encoding_errors):
        encoded = piece.encode()
        digest.update(encoded)
        text_bytes += len(encoded)
        length += len(piece)
        if ends:
            digest.update(b"\xff")  # which occurs in no UTF-8
            n_documents += 1
            if len(lengths) < MANY_DOCUMENTS:
                lengths.append(length)
            length = 0
    if not n_documents:
        what = f"{files[0].name} holds" if len(files) == 1 else f"the {len(files)} files hold"
        raise DataError(f"{what} no text; give a file with some text in it")
    return Scan(
        files=tuple(files),
        skipped=tuple(skipped),
        text_key=text_key,
        encoding_errors=encoding_errors,
        text_bytes=text_bytes,
        n_documents=n_documents,
        document_lengths=tuple(lengths),
        content_hash=digest.hexdigest(),
    )


def _find(sources: Sequence[str | Path], encoding_errors: str) -> tuple[list[SourceFile], list[str]]:
    """The files of text that the sources name, each once, and the names of those in folders that are not text."""
    files: dict[Path, SourceFile] = {}
    skipped: list[str] = []
    for source in sources:
        if str(source) == "-":
            spooled = _spool(sys.stdin.buffer, "standard input")
            files[spooled.path] = spooled
            continue
        paths = [Path(source)]
        if not os.path.exists(source):  # noqa: PTH110  (Path.exists raises for a name that is too long)
            matches = glob.glob(str(source), recursive=True)  # noqa: PTH207  (Path.glob takes no absolute pattern)
            paths = [Path(match) for match in sorted(matches)]
        if not paths:
            problem = "matches no file" if glob.has_magic(str(source)) else "does not exist"
            named = source if str(source).strip() else repr(source)
            raise DataError(f"{named} {problem}; give a text file, a folder, a glob, or - for standard input")
        for path in paths:
            for file in _in_folder(path, encoding_errors, skipped) if path.is_dir() else [_file(path)]:
                files.setdefault(file.path.resolve(), file)
    return list(files.values()), skipped


def _file(path: Path) -> SourceFile:
    if path.is_file():
        return SourceFile(path, str(path))
    with opened(SourceFile(path, str(path))) as stream:  # a pipe, which cannot be read twice
        return _spool(stream, str(path))


def _in_folder(folder: Path, encoding_errors: str, skipped: list[str]) -> list[SourceFile]:
    """The text files in a folder, sorted; the names of the others are added to `skipped`."""
    found, others = [], 0
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(name for name in names if not name.startswith(".")):
            file = SourceFile(Path(parent, name), str(Path(parent, name)))
            if file.path.is_file() and _looks_like_text(file, encoding_errors):
                found.append(file)
            else:
                skipped.append(file.name)
                others += 1
    if not found:
        beside = f" among the {others} in it" if others else ""
        raise DataError(f"{folder} has no text file{beside}; give a folder with .txt, .md or .jsonl files")
    return found


def _looks_like_text(file: SourceFile, encoding_errors: str) -> bool:
    with opened(file) as stream:
        head = stream.read(_SNIFFED)
    try:
        codecs.getincrementaldecoder("utf-8")(encoding_errors).decode(head, final=len(head) < _SNIFFED)
    except UnicodeDecodeError:
        return False
    return b"\0" not in head


def _spool(stream: BinaryIO | BufferedReader | gzip.GzipFile, name: str) -> SourceFile:
    """Copies a stream into a temporary file, which goes away with the object that names it: it is read twice."""
    try:
        descriptor, path = tempfile.mkstemp(prefix="minigpt-")
        file = SourceFile(Path(path), name)
        weakref.finalize(file, Path(path).unlink, missing_ok=True)
        with os.fdopen(descriptor, "wb") as copy:
            shutil.copyfileobj(stream, copy, BLOCK_SIZE)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise DataError(
            f"{name} cannot be copied to {tempfile.gettempdir()} ({reason}); set TMPDIR to a folder with enough space"
        ) from error
    return file


@contextlib.contextmanager
def opened(file: SourceFile) -> Iterator[BufferedReader | gzip.GzipFile]:
    """The file's bytes, unzipped where it is gzipped; what fails in reading them is said in one sentence."""
    try:
        with file.path.open("rb") as raw:
            if raw.peek(2)[:2] == b"\x1f\x8b":
                with gzip.GzipFile(fileobj=raw) as unzipped:
                    yield unzipped
            else:
                yield raw
    except EOFError as error:
        raise DataError(f"{file.name} is cut short: its gzip stream ends too early; fetch or zip it again") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{file.name} is damaged: its gzip stream cannot be unzipped ({error})") from error
    except OSError as error:
        raise DataError(f"{file.name} cannot be read ({(error.strerror or str(error)).lower()})") from error


def _documents(files: Iterable[SourceFile], text_key: str, encoding_errors: str) -> Iterator[Piece]:
    """The documents of all files, but none of white space alone."""
    for file in files:
        name = file.path.name.lower().removesuffix(".gz")
        with opened(file) as stream:
            if name.endswith((".jsonl", ".ndjson")):
                for text in _json_texts(file.name, stream, text_key, encoding_errors):
                    yield from _without_blank(_separated([text]))
            else:
                yield from _without_blank(_separated(_text_blocks(file.name, stream, encoding_errors)))


def _separated(blocks: Iterable[str]) -> Iterator[Piece]:
    """Cuts blocks of one text into documents, wherever in a block or across two the separator stands."""
    held = ""
    for block in blocks:
        *whole, rest = (held + block).split(END_OF_TEXT)
        for document in whole:
            yield document, True
        settled = max(0, len(rest) - len(END_OF_TEXT) + 1)  # what is left may be the start of a separator
        yield rest[:settled], False
        held = rest[settled:]
    yield held, True


def _without_blank(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """The documents that are not white space alone; the first piece of each holds something."""
    held: list[str] | None = []  # the white space that a document has so far, None where it has more
    for piece, ends in pieces:
        if held is not None and not piece.isspace() and piece:
            yield "".join(held) + piece, ends
            held = None
        elif held is None:
            yield piece, ends
        else:
            held.append(piece)
        if ends:
            held = []


def _text_blocks(name: str, stream: BufferedReader | gzip.GzipFile, errors: str) -> Iterator[str]:
    """A plain text, block by block."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors)
    offset = _skip_mark(name, stream)
    first = True
    while True:
        block = stream.read(BLOCK_SIZE)
        pending = len(decoder.getstate()[0])  # bytes of a character that the last block broke off
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            raise _undecodable(name, offset - pending, error) from error
        if first and "\0" in text:
            raise DataError(f"{name} is not a text: it holds zero bytes; give a file of UTF-8 text")
        yield text
        if not block:
            return
        first = False
        offset += len(block)


def _json_texts(name: str, stream: BufferedReader | gzip.GzipFile, key: str, errors: str) -> Iterator[str]:
    """The texts under `key` of a file with one JSON object a line; empty lines are passed over."""
    offset = _skip_mark(name, stream)
    for number, line in enumerate(stream, 1):
        where = f"{name}, line {number}"
        try:
            row = json.loads(line.decode(errors=errors).rstrip()) if line.strip() else {key: ""}
        except UnicodeDecodeError as error:
            raise _undecodable(name, offset, error) from error
        except ValueError as error:
            reason = str(error).replace("line 1 ", "")
            raise DataError(f"{where} is not JSON ({reason}); each line must be an object with a text") from error
        if not isinstance(row, dict):
            raise DataError(f'{where} must be an object such as {{"{key}": "..."}}')
        if key not in row:
            has = ", ".join(map(repr, row)) or "none"
            raise DataError(f"{where} has no key {key!r}; its keys are {has}: name the one with the text (--text-key)")
        text = row[key]
        if not isinstance(text, str):
            raise DataError(f"{where}: the value of {key!r} must be a text, and is {json.dumps(text)[:40]}")
        yield _whole_characters(where, text, errors)
        offset += len(line)


def _whole_characters(where: str, text: str, errors: str) -> str:
    """The text, if UTF-8 can hold it: JSON can escape one half of a surrogate pair, which is no character."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        if errors == "strict":
            half = f"{ord(text[error.start]):04x}"
            raise DataError(
                f"{where}: \\u{half} is half of a character; mend it, or go on with --encoding-errors replace"
            ) from error
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _skip_mark(name: str, stream: BufferedReader | gzip.GzipFile) -> int:
    """Passes over UTF-8's byte order mark and returns its length, 0 where there is none."""
    head = stream.peek(4)[:4]
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)):
        encoding = "UTF-32" if head in (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE) else "UTF-16"
        raise DataError(f"{name} is {encoding}; save it as UTF-8, or: iconv -f {encoding} -t UTF-8 {name} > new.txt")
    return len(stream.read(3)) if head.startswith(codecs.BOM_UTF8) else 0


def _undecodable(name: str, start: int, error: UnicodeDecodeError) -> DataError:
    byte = error.object[error.start]
    return DataError(
        f"{name} is not UTF-8: byte {start + error.start} is 0x{byte:02x}; "
        "save it as UTF-8, or go on with --encoding-errors replace"
    )
