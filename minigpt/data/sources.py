"""Sources of text: reads files, folders and standard input as one stream of documents.

Documents are yielded in pieces, so that no document has to fit into memory.
"""

import codecs
import contextlib
import glob
import gzip
import hashlib
import json
import os
import sys
import tempfile
import weakref
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from minigpt.bounded_reading import bounded_lines, parse_json
from minigpt.errors import ConfigError, DataError
from minigpt.tokenizer.vocabulary import END_OF_TEXT

BLOCK_SIZE = 2**20  # bytes per read
MANY_DOCUMENTS = 4096  # a scan records the lengths of at most this many

_SNIFF_BYTES = 2**16  # bytes that decide whether a file in a folder is text
_MAX_STREAM = 2**30  # bytes of a pipe, whose text is copied to the folder for temporary files, often kept in memory
_MAX_BLANK = 2**25  # characters of white space before the first other character of a document
_MAY_HAVE_ZEROS = (b"\x1f\x8b", codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)  # gzip, and UTF-16

Piece = tuple[str, bool]  # a piece of a document, and whether it is the document's last


@dataclass(frozen=True)
class SourceFile:
    """One file of text, and the name by which the user gave it."""

    path: Path
    name: str


@dataclass(frozen=True, kw_only=True)
class Scan:
    """The result of one pass over the sources; `pieces` reads them again."""

    files: tuple[SourceFile, ...]
    skipped: tuple[str, ...]  # files in folders that are not text
    text_key: str
    encoding_errors: str
    text_bytes: int  # in UTF-8, without separators between documents
    n_documents: int
    document_lengths: tuple[int, ...]  # characters of the first MANY_DOCUMENTS documents
    content_hash: str

    def pieces(self) -> Iterator[Piece]:
        """All documents, piece by piece."""
        return _documents(self.files, self.text_key, self.encoding_errors)


def scan(
    sources: str | Path | Sequence[str | Path], *, text_key: str = "text", encoding_errors: str = "strict"
) -> Scan:
    """Finds the files of these sources and reads them once, in constant memory, to measure their text.

    A source is a file, a folder, a glob, or `-` for standard input. Of a folder, all text files are read recursively in
    sorted order, except hidden ones. Files may be plain text or `.jsonl` with the text under `text_key`, gzipped or
    not. The literal "<|endoftext|>" separates documents; documents of white space only are skipped.

    Raises: DataError for a source that is missing, has no text, or cannot be decoded; ConfigError for an unknown
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
            digest.update(b"\xff")  # a byte that never occurs in UTF-8
            n_documents += 1
            if len(lengths) < MANY_DOCUMENTS:
                lengths.append(length)
            length = 0
    if not n_documents:
        what = f"{files[0].name} contains" if len(files) == 1 else f"the {len(files)} files contain"
        raise DataError(f"{what} no text; give a file with text")
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
    """The text files of the sources, each once, and the names of the files in folders that are not text."""
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
            paths = [path for path in map(Path, sorted(matches)) if path.is_dir() or _is_readable(path, skipped)]
        if not paths:
            problem = "matches no file" if glob.has_magic(str(source)) else "does not exist"
            named = source if str(source).strip() else repr(source)
            raise DataError(f"{named} {problem}; give a text file, a folder, a glob, or - for standard input")
        for path in paths:
            for file in _in_folder(path, encoding_errors, skipped) if path.is_dir() else [_file_or_pipe(path)]:
                files.setdefault(file.path.resolve(), file)
    return list(files.values()), skipped


def _is_readable(path: Path, skipped: list[str]) -> bool:
    """Whether a file that a glob matches is a regular one; adds the name of any other to `skipped`."""
    if not path.is_file():
        skipped.append(str(path))
        return False
    return True


def _file_or_pipe(path: Path) -> SourceFile:
    file = SourceFile(path, str(path))
    if path.is_file():
        return file
    if path.is_char_device() or path.is_block_device() or path.is_socket():
        raise DataError(f"{path} is a device, not a text; give a text file, a folder, a glob, or - for standard input")
    with open_source(file) as stream:  # a pipe, which can be read only once
        return _spool(stream, str(path))


def _in_folder(folder: Path, encoding_errors: str, skipped: list[str]) -> list[SourceFile]:
    """The text files in a folder, sorted; adds the names of the other files to `skipped`."""
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
        among = f" among its {others}" if others else ""
        raise DataError(f"{folder} has no text file{among}; give a folder with .txt, .md or .jsonl files")
    return found


def _looks_like_text(file: SourceFile, encoding_errors: str) -> bool:
    with open_source(file) as stream:
        head = stream.read(_SNIFF_BYTES)
    try:
        codecs.getincrementaldecoder("utf-8")(encoding_errors).decode(head, final=len(head) < _SNIFF_BYTES)
    except UnicodeDecodeError:
        return False
    return b"\0" not in head


def _spool(stream: BinaryIO | BufferedReader | gzip.GzipFile, name: str) -> SourceFile:
    """Copies a stream, which must be read twice, to a temporary file that is deleted with the returned object.

    Raises: DataError for a stream that is no text, or has not ended after _MAX_STREAM bytes.
    """
    try:
        descriptor, path = tempfile.mkstemp(prefix="minigpt-")
        file = SourceFile(Path(path), name)
        weakref.finalize(file, Path(path).unlink, missing_ok=True)
        with os.fdopen(descriptor, "wb") as copy:
            while block := stream.read(BLOCK_SIZE):
                if not copy.tell() and b"\0" in block and not block.startswith(_MAY_HAVE_ZEROS):
                    raise _not_text(name)
                if copy.tell() + len(block) > _MAX_STREAM:
                    raise DataError(
                        f"{name} did not end after {_MAX_STREAM:,} bytes; write a longer text to a file and give that"
                    )
                copy.write(block)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise DataError(
            f"{name} cannot be copied to {tempfile.gettempdir()} ({reason}); set TMPDIR to a folder with enough space"
        ) from error
    return file


@contextlib.contextmanager
def open_source(file: SourceFile) -> Iterator[BufferedReader | gzip.GzipFile]:
    """Opens a file for reading bytes, decompressed if it is gzipped; turns errors into a DataError."""
    try:
        with file.path.open("rb") as raw:
            if raw.peek(2)[:2] == b"\x1f\x8b":
                with gzip.GzipFile(fileobj=raw) as decompressed:
                    yield decompressed
            else:
                yield raw
    except EOFError as error:
        raise DataError(
            f"{file.name} is truncated: its gzip stream ends too early; download or compress it again"
        ) from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{file.name} is damaged: its gzip stream cannot be decompressed ({error})") from error
    except OSError as error:
        raise DataError(f"{file.name} cannot be read ({(error.strerror or str(error)).lower()})") from error


def _documents(files: Iterable[SourceFile], text_key: str, encoding_errors: str) -> Iterator[Piece]:
    """The documents of all files, except those of white space only."""
    for file in files:
        name = file.path.name.lower().removesuffix(".gz")
        with open_source(file) as stream:
            if name.endswith((".jsonl", ".ndjson")):
                for text in _json_texts(file.name, stream, text_key, encoding_errors):
                    yield from _skip_blank(file.name, _split_documents([text]))
            else:
                yield from _skip_blank(file.name, _split_documents(_text_blocks(file.name, stream, encoding_errors)))


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
    """Skips the documents of white space only; the first piece of every other document has other characters.

    Raises: DataError for a document that begins with more than _MAX_BLANK characters of white space.
    """
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


def _text_blocks(name: str, stream: BufferedReader | gzip.GzipFile, errors: str) -> Iterator[str]:
    """A plain text, block by block."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors)
    offset = _skip_bom(name, stream)
    first = True
    while True:
        block = stream.read(BLOCK_SIZE)
        pending = len(decoder.getstate()[0])  # bytes of an incomplete character at the end of the last block
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            raise _undecodable(name, offset - pending, error) from error
        if first and "\0" in text:
            raise _not_text(name)
        yield text
        if not block:
            return
        first = False
        offset += len(block)


def _json_texts(name: str, stream: BufferedReader | gzip.GzipFile, key: str, errors: str) -> Iterator[str]:
    """The texts under `key` in a file with one JSON object per line; empty lines are skipped."""
    offset = _skip_bom(name, stream)
    for number, line in enumerate(_lines(name, stream), 1):
        location = f"{name}, line {number}"
        try:
            row = parse_json(line.decode(errors=errors).rstrip()) if line.strip() else {key: ""}
        except UnicodeDecodeError as error:
            raise _undecodable(name, offset, error) from error
        except ValueError as error:
            reason = str(error).replace("line 1 ", "")
            raise DataError(
                f"{location} is not JSON ({reason}); each line must be a JSON object with a text"
            ) from error
        if not isinstance(row, dict):
            raise DataError(f'{location} must be a JSON object such as {{"{key}": "..."}}')
        if key not in row:
            keys = ", ".join(repr(found)[:40] for found in islice(row, 10)) or "none"
            raise DataError(
                f"{location} has no key {key!r}; its keys: {keys}; name the key of the text with --text-key"
            )
        text = row[key]
        if not isinstance(text, str):
            raise DataError(f"{location}: the value of {key!r} must be a string, not {json.dumps(text)[:40]}")
        yield _replace_surrogates(location, text, errors)
        offset += len(line)


def _lines(name: str, stream: BufferedReader | gzip.GzipFile) -> Iterator[bytes]:
    try:
        yield from bounded_lines(stream)
    except ValueError as error:
        raise DataError(f"{name}: {error}; cut the text into several lines") from error


def _replace_surrogates(location: str, text: str, errors: str) -> str:
    """The text with lone surrogates replaced by U+FFFD: JSON can escape one, but UTF-8 cannot encode it.

    Raises: DataError for one if `errors` is strict.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        if errors == "strict":
            surrogate = f"{ord(text[error.start]):04x}"
            raise DataError(
                f"{location}: \\u{surrogate} is half of a surrogate pair; correct it, or use --encoding-errors replace"
            ) from error
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _skip_bom(name: str, stream: BufferedReader | gzip.GzipFile) -> int:
    """Skips a UTF-8 byte order mark and returns its length in bytes, 0 if there is none.

    Raises: DataError for a byte order mark of UTF-16 or UTF-32.
    """
    head = stream.peek(4)[:4]
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)):
        encoding = "UTF-32" if head in (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE) else "UTF-16"
        raise DataError(f"{name} is {encoding}; save it as UTF-8, or: iconv -f {encoding} -t UTF-8 {name} > new.txt")
    return len(stream.read(3)) if head.startswith(codecs.BOM_UTF8) else 0


def _not_text(name: str) -> DataError:
    return DataError(f"{name} is not text: it contains zero bytes; give a UTF-8 text file")


def _undecodable(name: str, start: int, error: UnicodeDecodeError) -> DataError:
    byte = error.object[error.start]
    return DataError(
        f"{name} is not UTF-8: byte {start + error.start} is 0x{byte:02x}; "
        "save it as UTF-8, or use --encoding-errors replace"
    )
