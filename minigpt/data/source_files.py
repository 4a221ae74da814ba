"""Finds the files of a text: files, folders, globs, standard input and pipes; opens each as a stream of UTF-8."""

import codecs
import contextlib
import glob
import gzip
import os
import sys
import tempfile
import weakref
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

from minigpt.data.documents.read import is_document, read_document
from minigpt.data.encodings import Recoded, is_utf8, likely_encoding, mend
from minigpt.data.pipes import read_pipe
from minigpt.data.zstd import MAGIC as ZSTD_MAGIC
from minigpt.data.zstd import ZstdDamagedError, open_zstd
from minigpt.errors import DataError, MinigptError, MissingPackageError, reason_of

_BLOCK = 2**20  # bytes per read
_SNIFF_BYTES = 2**16  # bytes that decide whether a file in a folder is text
_MAX_STREAM = 2**30  # bytes of a pipe, whose text is copied to the folder for temporary files, often kept in memory
_GZIP_MAGIC = b"\x1f\x8b"
_MAY_HAVE_ZEROS = (_GZIP_MAGIC, ZSTD_MAGIC, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)


class Decoding(NamedTuple):
    """How bytes become text: the encoding, and whether what is invalid in it ends the reading or becomes U+FFFD."""

    encoding: str = "utf-8"
    errors: str = "strict"


UTF8 = Decoding()


@dataclass(frozen=True)
class SourceFile:
    """One file of text, the name by which the user gave it, and how it is decoded."""

    path: Path
    name: str
    decoding: Decoding = UTF8

    @property
    def is_json(self) -> bool:
        """Whether the file has a JSON value on each line."""
        return without_compression(self.path.name.lower()).endswith((".jsonl", ".ndjson"))

    @property
    def is_parquet(self) -> bool:
        """Whether the file is a table in Apache Parquet's format."""
        return self.path.suffix.lower() == ".parquet"


def without_compression(name: str) -> str:
    """The name of a file without the ending that says how it is compressed."""
    return name.removesuffix(".gz").removesuffix(".zst")


class FoundFiles(NamedTuple):
    """The files of a text, each once; the names of the files in folders that are not text; and sentences on documents
    in folders that were skipped too."""

    files: list[SourceFile]
    skipped: list[str]
    notes: list[str]


def find_files(sources: Sequence[str | Path], decoding: Decoding) -> FoundFiles:
    """The text files of the sources, and the documents, whose text is copied to temporary files.

    Raises: DataError for a source that is missing or cannot be read, MissingPackageError for a document without the
    package that reads it; in a folder, such files are skipped.
    """
    files: dict[Path, SourceFile] = {}
    skipped: list[str] = []
    unread: list[MinigptError] = []
    for source in sources:
        if str(source) == "-":
            spooled = _spool(iter(lambda: sys.stdin.buffer.read(_BLOCK), b""), "standard input", decoding)
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
            if path.is_dir():
                files |= _in_folder(path, decoding, skipped, unread, files)
            elif path.resolve() not in files:
                files[path.resolve()] = _readable(_plain_file(path, decoding))
    return FoundFiles(list(files.values()), skipped, _notes_on(unread))


def _is_readable(path: Path, skipped: list[str]) -> bool:
    """Whether a file that a glob matches is a regular one; adds the name of any other to `skipped`."""
    if not path.is_file():
        skipped.append(str(path))
        return False
    return True


def _readable(file: SourceFile) -> SourceFile:
    """The file itself, or the text of a document as a temporary file.

    Raises: DataError for a document that cannot be read; MissingPackageError without the package that reads it.
    """
    if not is_document(file.path):
        return file
    text = read_document(file.path, file.name, *file.decoding).encode()
    return _spool([text], file.name)


def _plain_file(path: Path, decoding: Decoding) -> SourceFile:
    """A file, or the copy of a pipe."""
    if path.is_file():
        return SourceFile(path, str(path), decoding)
    if path.is_char_device() or path.is_block_device() or path.is_socket():
        raise DataError(f"{path} is a device, not a text; give a text file, a folder, a glob, or - for standard input")
    return _spool(read_pipe(path, _BLOCK), str(path), decoding)


def _in_folder(
    folder: Path,
    decoding: Decoding,
    skipped: list[str],
    unread: list[MinigptError],
    known: Mapping[Path, SourceFile],
) -> dict[Path, SourceFile]:
    """The text files and documents in a folder by their paths, sorted, without reading the `known` ones again.

    Adds files that are not text to `skipped`, and documents that cannot be read to `unread`.
    Raises: DataError if there is no other file.
    """
    found: dict[Path, SourceFile] = {}
    others, reason = 0, None
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(name for name in names if not name.startswith(".")):
            file = SourceFile(Path(parent, name), str(Path(parent, name)), decoding)
            original = file.path.resolve()
            if original in known:
                found[original] = known[original]
            elif not file.path.is_file() or not (is_document(file.path) or file.is_parquet or _looks_like_text(file)):
                skipped.append(file.name)
                others += 1
            else:
                try:
                    found[original] = _readable(file)
                except (DataError, MissingPackageError) as error:
                    unread.append(error)
                    others, reason = others + 1, reason or error
    if not found and reason is not None:
        raise reason
    if not found:
        among = f" among its {others}" if others else ""
        raise DataError(f"{folder} has no text file{among}; give a folder with .txt, .md, .jsonl or .parquet files")
    return found


def _notes_on(unread: Sequence[MinigptError]) -> list[str]:
    """A sentence on the documents that need packages, and one on those that cannot be read."""
    notes = []
    for kind in (MissingPackageError, DataError):
        if of_kind := [error for error in unread if isinstance(error, kind)]:
            more = len(of_kind) - 1
            others = f" ({more:,} other {'document' if more == 1 else 'documents'} too)" if more else ""
            notes.append(f"skipped a document{others}: {of_kind[0]}")
    return notes


def _looks_like_text(file: SourceFile) -> bool:
    with open_source(replace(file, decoding=UTF8)) as stream:
        head = stream.read(_SNIFF_BYTES)
    try:
        text = codecs.getincrementaldecoder(file.decoding.encoding)(file.decoding.errors).decode(
            head, final=len(head) < _SNIFF_BYTES
        )
    except UnicodeError:
        return False
    return "\0" not in text


def _spool(blocks: Iterable[bytes], name: str, decoding: Decoding = UTF8) -> SourceFile:
    """Copies a stream, which must be read twice, to a temporary file that is deleted with the returned object.

    Raises: DataError for a stream that is no text, or has not ended after _MAX_STREAM bytes.
    """
    try:
        descriptor, path = tempfile.mkstemp(prefix="minigpt-")
        file = SourceFile(Path(path), name, decoding)
        weakref.finalize(file, Path(path).unlink, missing_ok=True)
        with os.fdopen(descriptor, "wb") as copy:
            for block in blocks:
                is_first = not copy.tell()
                if (
                    is_first
                    and b"\0" in block
                    and not (block.startswith(_MAY_HAVE_ZEROS) or not is_utf8(decoding.encoding))
                ):
                    raise not_text(name, block)
                if copy.tell() + len(block) > _MAX_STREAM:
                    raise DataError(
                        f"{name} did not end after {_MAX_STREAM:,} bytes; write a longer text to a file and give that"
                    )
                copy.write(block)
    except OSError as error:
        reason = reason_of(error)
        raise DataError(
            f"{name} cannot be copied to {tempfile.gettempdir()} ({reason}); set TMPDIR to a folder with enough space"
        ) from error
    return file


@contextlib.contextmanager
def open_source(file: SourceFile) -> Iterator[BufferedReader | gzip.GzipFile]:
    """Opens a file for reading its text as UTF-8, decompressed if it is compressed by gzip or zstd; turns errors into a
    DataError.

    Bytes that are not UTF-8 are read as they are if the file should be UTF-8.
    """
    try:
        with file.path.open("rb") as raw, contextlib.ExitStack() as stack:
            stream: BufferedReader | gzip.GzipFile = raw
            if raw.peek(2)[:2] == _GZIP_MAGIC:
                stream = stack.enter_context(gzip.GzipFile(fileobj=raw))
            elif raw.peek(4)[:4] == ZSTD_MAGIC:
                stream = open_zstd(raw, file.name)
            encoding, errors = file.decoding
            yield stream if is_utf8(encoding) else BufferedReader(Recoded(stream, file.name, encoding, errors))
    except EOFError as error:
        raise DataError(
            f"{file.name} is truncated: its compressed stream ends too early; download or compress it again"
        ) from error
    except ZstdDamagedError as error:
        raise DataError(
            f"{file.name} cannot be decompressed by zstd ({error}); download or compress it again"
        ) from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{file.name} is damaged: its gzip stream cannot be decompressed ({error})") from error
    except OSError as error:
        raise DataError(f"{file.name} cannot be read ({reason_of(error)})") from error


def skip_bom(name: str, stream: BufferedReader | gzip.GzipFile) -> int:
    """Skips a UTF-8 byte order mark and returns its length in bytes, 0 if there is none.

    Raises: DataError for a byte order mark of UTF-16 or UTF-32.
    """
    head = stream.peek(4)[:4]
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)):
        raise DataError(f"{name} is not UTF-8; {mend(likely_encoding(head))}")
    return len(stream.read(3)) if head.startswith(codecs.BOM_UTF8) else 0


def not_text(name: str, head: bytes) -> DataError:
    """The error for a file that begins with these bytes, of which some are zero."""
    if (encoding := likely_encoding(head)) is not None:
        return DataError(f"{name} is not UTF-8; {mend(encoding)}")
    return DataError(f"{name} is not text: it contains zero bytes; give a UTF-8 text file")


def undecodable(name: str, start: int, error: UnicodeDecodeError) -> DataError:
    """The error for a byte that is not UTF-8; `start` is the offset of the bytes that the decoder was given."""
    byte = error.object[error.start]
    return DataError(
        f"{name} is not UTF-8: byte {start + error.start} is 0x{byte:02x}; {mend(likely_encoding(error.object))}"
    )
