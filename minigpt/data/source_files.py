"""A file of text, opened as a stream of UTF-8 whatever its encoding and compression."""

import codecs
import contextlib
import gzip
import io
import os
import weakref
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

from minigpt.config import ReadingConfig
from minigpt.data.encodings import (
    Recoded,
    encoding_advice,
    evident_encoding,
    is_same_in_utf8,
    is_utf8,
    likely_encoding,
)
from minigpt.data.formats import HEAD_BYTES, TextReader, reader_of, unread_format
from minigpt.data.zstd import MAGIC as ZSTD_MAGIC
from minigpt.data.zstd import open_zstd
from minigpt.errors import DataError, reason_of

_BLOCK = 2**20  # bytes per read
GZIP_MAGIC = b"\x1f\x8b"  # the first bytes of a file
COMPRESSED = (GZIP_MAGIC, ZSTD_MAGIC)
MAY_HAVE_ZEROS = (*COMPRESSED, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)


ByteStream = BufferedReader | gzip.GzipFile  # or a ZstdFile, which has the same methods


class Decoding(NamedTuple):
    """How bytes become text: the encoding, and the error handler for bytes that are invalid in it."""

    encoding: str = "utf-8"
    errors: str = "strict"


UTF8 = Decoding()
_READING = ReadingConfig()


class TemporaryCopy:
    """Deletes the copy of a pipe or of a document's text when no file refers to it any more."""

    def __init__(self, path: Path) -> None:
        weakref.finalize(self, path.unlink, missing_ok=True)


@dataclass(frozen=True)
class SourceFile:
    """One file of text, the name by which the user gave it, and how it is decoded and read."""

    path: Path
    name: str
    decoding: Decoding = UTF8
    is_in_folder: bool = False  # that the user gave, instead of the file itself
    copy: TemporaryCopy | None = field(default=None, compare=False)
    reading: ReadingConfig = _READING

    @property
    def plain_name(self) -> str:
        """The name of the decompressed file."""
        return without_compression(self.path.name.lower())

    @property
    def is_json(self) -> bool:
        """Whether the file has a JSON value on each line."""
        return self.plain_name.endswith((".jsonl", ".ndjson"))

    @property
    def reader(self) -> TextReader | None:
        """What reads the file if it is neither plain text nor .jsonl; only texts may be compressed."""
        found = reader_of(self.plain_name)
        is_compressed = self.plain_name != self.path.name.lower()
        return None if found is not None and found.is_binary and is_compressed else found

    @property
    def is_binary(self) -> bool:
        """Whether the file is not a text, although it is read."""
        return self.reader is not None and self.reader.is_binary

    @property
    def is_recoded(self) -> bool:
        """Whether the file is in another encoding and read as UTF-8; the texts in a binary file are always UTF-8."""
        return not (self.is_binary or is_utf8(self.decoding.encoding))

    def stat(self) -> os.stat_result:
        """The file's status.

        Raises: DataError if it cannot be read.
        """
        with reading(self.name):
            return self.path.stat()


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


def own_encoding(file: SourceFile) -> str:
    """The encoding that a file evidently has, else the one that was given for it."""
    given = file.decoding.encoding
    if not file.is_recoded:
        return given
    return "utf-8" if _is_utf8(file) else evident_encoding(head_of(file), given) or given


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


def head_of(file: SourceFile) -> bytes:
    """The first bytes of a file, decompressed."""
    with open_source(replace(file, decoding=UTF8)) as stream:
        return stream.read(HEAD_BYTES)


@contextlib.contextmanager
def open_source(file: SourceFile) -> Iterator[ByteStream]:
    """Opens a file for reading its text as UTF-8, decompressed if it is compressed by gzip or zstd; turns errors into a
    DataError.

    Bytes that are not UTF-8 are read as they are if the file should be UTF-8.
    """
    try:
        with file.path.open("rb") as raw, contextlib.ExitStack() as stack:
            stream: ByteStream = raw
            if raw.peek(2)[:2] == GZIP_MAGIC:
                stream = stack.enter_context(gzip.GzipFile(fileobj=raw))
            elif raw.peek(4)[:4] == ZSTD_MAGIC:
                stream = stack.enter_context(open_zstd(raw, file.name))
            encoding, errors = file.decoding
            yield stream if is_utf8(encoding) else BufferedReader(Recoded(stream, file.name, encoding, errors))
    except EOFError as error:
        raise DataError(
            f"{file.name} is truncated: its compressed stream ends too early; download or compress it again"
        ) from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{file.name} is damaged: its gzip stream cannot be decompressed ({error})") from error
    except OSError as error:
        raise DataError(f"{file.name} cannot be read ({reason_of(error)})") from error


def skip_bom(name: str, stream: ByteStream) -> int:
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
