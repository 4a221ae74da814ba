"""Finds the files of a text: files, folders, globs, standard input and pipes; opens each as a stream of UTF-8."""

import codecs
import contextlib
import glob
import gzip
import io
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

from minigpt.bounded_reading import is_of_kernel
from minigpt.data.documents.read import GZIP_MAGIC, is_document, read_document
from minigpt.data.encodings import (
    Recoded,
    encoding_advice,
    encoding_name,
    evident_encoding,
    is_same_in_utf8,
    is_utf8,
    likely_encoding,
)
from minigpt.data.folders import expand, is_file, is_folder, walk
from minigpt.data.formats import HEAD_BYTES, looks_like_text, unread_format
from minigpt.data.pipes import read_pipe
from minigpt.data.skipped import Skipped, Unread, shown
from minigpt.data.zstd import MAGIC as ZSTD_MAGIC
from minigpt.data.zstd import ZstdDamagedError, open_zstd
from minigpt.errors import DataError, MissingPackageError, MissingTextError, UndecodableError, reason_of

_BLOCK = 2**20  # bytes per read
_MAX_STREAM = 2**30  # bytes of a pipe, whose text is copied to the folder for temporary files, often kept in memory
_COMPRESSED = (GZIP_MAGIC, ZSTD_MAGIC)
_MAY_HAVE_ZEROS = (*_COMPRESSED, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)


class Decoding(NamedTuple):
    """How bytes become text: the encoding, and the error handler for bytes that are invalid in it."""

    encoding: str = "utf-8"
    errors: str = "strict"


UTF8 = Decoding()


@dataclass(frozen=True)
class SourceFile:
    """One file of text, the name by which the user gave it, and how it is decoded."""

    path: Path
    name: str
    decoding: Decoding = UTF8
    is_in_folder: bool = False  # that the user gave, instead of the file itself

    @property
    def plain_name(self) -> str:
        """The name of the decompressed file."""
        return without_compression(self.path.name.lower())

    @property
    def is_json(self) -> bool:
        """Whether the file has a JSON value on each line."""
        return self.plain_name.endswith((".jsonl", ".ndjson"))

    @property
    def may_be_json(self) -> bool:
        """Whether the file may be JSON that is not on lines, or on lines but not named so."""
        return self.plain_name.endswith(".json")

    @property
    def is_parquet(self) -> bool:
        """Whether the file is a table in Apache Parquet's format."""
        return self.path.suffix.lower() == ".parquet"

    @property
    def is_recoded(self) -> bool:
        """Whether the file is in another encoding and read as UTF-8; the texts in a table are always UTF-8."""
        return not (self.is_parquet or is_utf8(self.decoding.encoding))

    def stat(self) -> os.stat_result:
        """The file's status.

        Raises: DataError if it cannot be read.
        """
        with reading(self.name):
            return self.path.stat()

    def is_compressed(self) -> bool:
        """Whether the file is compressed by gzip or zstd, judged by its first bytes.

        Raises: DataError if it cannot be read.
        """
        with reading(self.name), self.path.open("rb") as stream:
            return stream.read(4).startswith(_COMPRESSED)


@contextlib.contextmanager
def reading(name: str) -> Iterator[None]:
    """Turns an OSError while a file is read into a DataError that names the file."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{name} cannot be read ({reason_of(error)})") from error


def absolute_path(path: str | Path) -> Path:
    """The absolute path of a file or folder, without links in the folders above it.

    A link itself keeps its name, which may be the only one that says the type of the file, as in a Hugging Face cache.
    """
    path = Path(path)
    if path.name in ("", ".."):
        return Path(os.path.realpath(path))
    return Path(os.path.realpath(path.parent), path.name)


def without_compression(name: str) -> str:
    """The name of a file without the ending that says how it is compressed."""
    return name.removesuffix(".gz").removesuffix(".zst")


def path_from_here(path: str) -> str:
    """A path as a user would type it: relative if it is below the working directory, else unchanged."""
    here = Path.cwd()
    return os.path.relpath(path, here) if Path(path).is_relative_to(here) else path


class FoundFiles(NamedTuple):
    """The files of a text, each once; the names of the files in folders that are not text; and sentences on documents,
    folders and models in folders that were skipped too."""

    files: list[SourceFile]
    skipped: list[str]
    notes: list[str]


def find_files(sources: Sequence[str | Path], decoding: Decoding) -> FoundFiles:
    """The text files of the sources, and the documents, whose text is copied to temporary files.

    Raises: DataError for a source that is missing or cannot be read, MissingPackageError for a document without the
    package that reads it; in a folder, such files are skipped, and so are models.
    """
    files: dict[str, SourceFile] = {}  # by path without links
    skipped = Skipped()
    for source in sources:
        if str(source) == "-":
            if sys.stdin is None:
                raise DataError("standard input is closed; give a text file or pipe a text in")
            spooled = _spool(iter(lambda: sys.stdin.buffer.read(_BLOCK), b""), "standard input", decoding)
            files[str(spooled.path)] = _readable(spooled)
            continue
        paths, n_models, is_glob = [Path(source)], len(skipped.models), False
        if not os.path.exists(source):  # noqa: PTH110  (Path.exists raises for a name that is too long)
            matches = expand(str(source), skipped.add_model)
            paths = [path for path in matches if is_folder(path) or _is_readable(path, skipped)]
            is_glob = glob.has_magic(str(source))
        if not paths and len(skipped.models) == n_models:
            problem = "matches no file" if is_glob else "does not exist"
            named = source if str(source).strip() else repr(source)
            raise MissingTextError(f"{named} {problem}; give a text file, a folder, a glob, or - for standard input")
        for path in paths:
            if is_folder(path):
                files |= _in_folder(path, decoding, skipped, files, may_be_empty=is_glob)
            elif (original := os.path.realpath(path)) not in files:
                files[original] = _readable(_plain_file(path, decoding))
    if not files and skipped.models:
        raise DataError(
            f"{', '.join(map(str, sources))} has no text file outside its models ({shown(skipped.models)}), which are "
            "not read as text; give a folder with .txt, .md, .jsonl or .parquet files"
        )
    if not files:
        if skipped.unread:
            raise skipped.unread[0].error
        raise DataError(
            f"{', '.join(map(str, sources))} has no text file; give a folder with .txt, .md, .jsonl or .parquet files"
        )
    read, notes = _decoded(list(files.values()))
    return FoundFiles(read, skipped.files, [*skipped.notes(), *notes])


def _decoded(files: list[SourceFile]) -> tuple[list[SourceFile], list[str]]:
    """The files, of which those that are evidently in UTF-8, UTF-16 or UTF-32 are read as that although another
    encoding was given, and a sentence on those of each encoding."""
    changed = [replace(file, decoding=file.decoding._replace(encoding=_own_encoding(file))) for file in files]
    given = next((file.decoding.encoding for file in files if file.is_recoded), "")
    names: dict[str, list[str]] = {}
    others = [old.name for old, new in zip(files, changed, strict=True) if old.is_recoded and old == new]
    for old, new in zip(files, changed, strict=True):
        if old != new:
            names.setdefault(new.decoding.encoding, []).append(new.name)
    notes = []
    for encoding, found in names.items():
        several = f"{len(found):,} files that are" if len(found) > 1 else "a file that is"
        notes.append(f"read {several} {encoding_name(encoding)} as that, not as {given}: {shown(found)}")
    if notes and others:
        notes[-1] += f"; read as {given}: {shown(others)}"
    return [old if old == new else new for old, new in zip(files, changed, strict=True)], notes


def _own_encoding(file: SourceFile) -> str:
    """The encoding that a file evidently has, else the one that was given for it."""
    given = file.decoding.encoding
    if not file.is_recoded:
        return given
    return "utf-8" if _is_utf8(file) else evident_encoding(_head(file), given) or given


def _is_utf8(file: SourceFile) -> bool:
    """Whether a file that should be in another encoding is UTF-8, so that the other would damage its text."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    is_different = False
    with open_source(replace(file, decoding=UTF8)) as stream:
        while block := stream.read(_BLOCK):
            if b"\0" in block:
                return False
            is_different = is_different or not is_same_in_utf8(block, file.decoding.encoding)
            try:
                decoder.decode(block)
            except UnicodeDecodeError:
                return False
    return is_different and not decoder.getstate()[0]


def decode(raw: bytes, name: str, decoding: Decoding) -> tuple[str, str | None]:
    """A short text in UTF-8 or else in another encoding, as files are read; and the encoding that it evidently has, if
    that is another one and the text is not the same in both.

    Raises: DataError for bytes that are invalid, with the same sentence as for a file.
    """
    encoding, errors = decoding
    if is_utf8(encoding):
        if b"\0" in raw:
            raise not_text(name, raw)
        try:
            return raw.decode("utf-8-sig", errors), None
        except UnicodeDecodeError as error:
            raise undecodable(name, 0, error) from error
    with contextlib.suppress(UnicodeDecodeError):
        if b"\0" not in raw:
            return raw.decode("utf-8-sig"), None if is_same_in_utf8(raw, encoding) else "utf-8"
    evident = evident_encoding(raw, encoding)
    recoded = BufferedReader(Recoded(io.BytesIO(raw), name, evident or encoding, errors))
    return recoded.read().decode().removeprefix("\ufeff"), evident


def _is_readable(path: Path, skipped: Skipped) -> bool:
    """Whether a file that a glob matches is a regular one; adds the name of any other to `skipped`."""
    if not is_file(path):
        skipped.files.append(str(path))
        return False
    return True


def _readable(file: SourceFile) -> SourceFile:
    """The file itself, or the text of a document as a temporary file.

    Raises: DataError for a document that cannot be read, and for a format that is not; MissingPackageError without the
    package that reads it.
    """
    if not is_document(file.path):
        if is_document(Path(file.plain_name)):
            program = "unzstd" if file.path.suffix.lower() == ".zst" else "gunzip"
            raise DataError(f"{file.name} is a compressed document; decompress it with {program}")
        if not file.is_parquet and (problem := unread_format(file.plain_name, _head(file))) is not None:
            if file.is_compressed():
                problem = problem.replace("; rename", "; decompress and rename")
            raise DataError(f"{file.name} {problem}")
        return file
    # Bytes that are invalid in it are written as they are, and met by all that reads the copy as in any text.
    text = read_document(file.path, file.name, *file.decoding).encode(errors="surrogateescape")
    return _spool([text], file.name)


def _plain_file(path: Path, decoding: Decoding) -> SourceFile:
    """A file, or the copy of a pipe."""
    if is_file(path):
        return SourceFile(path, str(path), decoding)
    if is_of_kernel(path):
        raise DataError(f"{path} is a file of the kernel, not a text; copy what it says into a file")
    if path.is_char_device() or path.is_block_device() or path.is_socket():
        raise DataError(f"{path} is a device, not a text; give a text file, a folder, a glob, or - for standard input")
    return _spool(read_pipe(path, _BLOCK), str(path), decoding)


def _in_folder(
    folder: Path, decoding: Decoding, skipped: Skipped, known: Mapping[str, SourceFile], *, may_be_empty: bool = False
) -> dict[str, SourceFile]:
    """The text files and documents in a folder by their paths, sorted, without reading the `known` ones again.

    Adds files that are not text, models, and files and folders that cannot be read to `skipped`.
    Raises: DataError if there is nothing else, and no model, unless it `may_be_empty`.
    """
    found: dict[str, SourceFile] = {}
    models: list[Path] = []
    unread, others, n_unread = skipped.unread, 0, len(skipped.unread)

    def skip_folder(error: OSError) -> None:
        reason = reason_of(error)
        unread.append(Unread("folder", error.filename, DataError(f"{error.filename} cannot be read ({reason})")))

    for path in walk(folder, skip_folder, models.append):
        file = SourceFile(path, str(path), decoding, is_in_folder=True)
        original = os.path.realpath(path)
        try:
            if original in known:
                found[original] = known[original]
            elif not (is_file(path) and _is_read(file)):
                skipped.files.append(file.name)
                others += 1
            else:
                found[original] = _readable(file)
        except MissingPackageError as error:
            if not is_document(path):  # of a text that is read with it
                raise
            unread.append(Unread("document", file.name, error))
        except UndecodableError:
            raise
        except DataError as error:
            unread.append(Unread("document" if is_document(path) else "file", file.name, error))
    for model in models:
        skipped.add_model(model)
    if found or may_be_empty:
        return found
    if len(unread) > n_unread:
        raise unread[n_unread].error
    if not models:
        among = f" among its {others}" if others else ""
        raise DataError(f"{folder} has no text file{among}; give a folder with .txt, .md, .jsonl or .parquet files")
    return found


def _is_read(file: SourceFile) -> bool:
    """Whether a file in a folder is read: all but those that are no text in any encoding.

    A text that cannot be decoded is an error, as if it was named.
    """
    if is_document(Path(file.plain_name)) or file.is_parquet:
        return True
    head = _head(file)
    is_known = unread_format(file.plain_name, head) is not None  # reading it says what to do
    return is_known or looks_like_text(file.plain_name, head, file.decoding.encoding)


def _head(file: SourceFile) -> bytes:
    """The first bytes of a file, decompressed."""
    with open_source(replace(file, decoding=UTF8)) as stream:
        return stream.read(HEAD_BYTES)


def _spool(blocks: Iterable[bytes], name: str, decoding: Decoding = UTF8) -> SourceFile:
    """Copies a stream, which must be read twice, to a temporary file that is deleted with the returned object.

    Raises: DataError for a stream that is no text, cannot be read, or has not ended after _MAX_STREAM bytes.
    """
    try:
        descriptor, path = tempfile.mkstemp(prefix="minigpt-")
        file = SourceFile(Path(path), name, decoding)
        weakref.finalize(file, Path(path).unlink, missing_ok=True)
        with os.fdopen(descriptor, "wb") as copy:
            for block in _blocks(blocks, name):
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
        folder = tempfile.tempdir or "a temporary folder"  # None if there is none
        raise DataError(
            f"{name} cannot be copied to {folder} ({reason_of(error)}); set TMPDIR to a folder with enough space"
        ) from error
    return file


def _blocks(blocks: Iterable[bytes], name: str) -> Iterator[bytes]:
    with reading(name):
        yield from blocks


@contextlib.contextmanager
def open_source(file: SourceFile) -> Iterator[BufferedReader | gzip.GzipFile]:
    """Opens a file for reading its text as UTF-8, decompressed if it is compressed by gzip or zstd; turns errors into a
    DataError.

    Bytes that are not UTF-8 are read as they are if the file should be UTF-8.
    """
    try:
        with file.path.open("rb") as raw, contextlib.ExitStack() as stack:
            stream: BufferedReader | gzip.GzipFile = raw
            if raw.peek(2)[:2] == GZIP_MAGIC:
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
        raise DataError(f"{name} is not UTF-8; {encoding_advice(likely_encoding(head))}")
    return len(stream.read(3)) if head.startswith(codecs.BOM_UTF8) else 0


def not_text(name: str, head: bytes) -> DataError:
    """The error for a file that begins with these bytes, of which some are zero."""
    if (problem := unread_format("", head)) is not None:
        return DataError(f"{name} {problem}")
    if (encoding := likely_encoding(head)) is not None:
        return DataError(f"{name} is not UTF-8; {encoding_advice(encoding)}")
    return DataError(f"{name} is not text: it contains zero bytes; give a UTF-8 text file")


def undecodable(name: str, start: int, error: UnicodeDecodeError) -> DataError:
    """The error for a byte that is not UTF-8; `start` is the offset of the bytes that the decoder was given."""
    byte, advice = error.object[error.start], encoding_advice(likely_encoding(error.object))
    return DataError(f"{name} is not UTF-8: byte {start + error.start} is 0x{byte:02x}; {advice}")
