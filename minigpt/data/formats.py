"""Recognizes text files, and files of other formats: those that an edge reads, and those that are not read."""

import codecs
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from minigpt.data.encodings import is_utf8, likely_encoding
from minigpt.edges import provided

HEAD_BYTES = 2**16  # bytes at the beginning of a file that decide

_CONTROL = bytes({*range(32), 127} - set(b"\b\t\n\v\f\r\x1b"))
_MOST_CONTROL = 0.01  # of the bytes of a text: random bytes have a tenth
_TAR = slice(257, 262)  # the bytes of a tar archive that are "ustar"
_TEXT = (".txt", ".text", ".md", ".rst", ".log", ".jsonl", ".ndjson")  # names of texts, whatever is in them

_ARRAYS = "has arrays of numbers, not text; give the text that they were made of"
_ARCHIVE = "is an archive; unpack it and give the folder or its files"
_NOT_INSTALLED = "cannot be read: what reads this format is not installed; save it as plain text"
_OF_EDGES = (".epub", ".html", ".htm", ".xhtml", ".docx", ".pdf", ".srt", ".vtt", ".parquet", ".json")
_UNREAD: Mapping[str | bytes, str] = {  # by the suffix or the beginning of a file
    **dict.fromkeys(_OF_EDGES, _NOT_INSTALLED),
    **dict.fromkeys((".npy", ".npz"), _ARRAYS),
    ".lzma": "is compressed by lzma; decompress it with unlzma",
    **dict.fromkeys((".zip", ".tar", ".tgz", ".7z", ".rar"), _ARCHIVE),
    b"PK\x03\x04": _ARCHIVE,
    b"7z\xbc\xaf\x27\x1c": _ARCHIVE,
    b"Rar!\x1a\x07": _ARCHIVE,
    **{b"BZh%d1AY" % level: "is compressed by bzip2; decompress it with bunzip2" for level in range(1, 10)},
    b"\x93NUMPY": _ARRAYS,
    b"\x1f\x9d": "is compressed by compress; decompress it with uncompress",
    b"\x04\x22\x4d\x18": "is compressed by lz4; decompress it with unlz4",
    b"\xfd7zXZ\0": "is compressed by xz; decompress it with unxz",
}


@dataclass(frozen=True, kw_only=True)
class TextReader:
    """Reads files of a format by the suffix of their names; edges provide one or a tuple at the seam "text_reader".

    Either `text` gives the whole text of a file, which is copied to a temporary file; it takes the path, the name that
    errors call the file, the encoding that the user gave, and "strict" or "replace" for bytes that are invalid in it.
    Or `records` gives the documents of a file, in each pass over the text, as `Record`s; it takes the `SourceFile` and
    the key of a record's text, and returns None for a plain text. `keys` are the keys of the first record.

    `is_binary` unless the files are text, which may be compressed and in any encoding. With `copy_suffix`, the name of
    the temporary file ends in it, so that it is read by its own reader. `unread` says of other formats why they are not
    read and what to do, by the suffix of a file or by the bytes that it begins with.
    """

    suffixes: Sequence[str]
    is_binary: bool = True
    text: Callable[[Path, str, str, str], str] | None = None
    records: Callable[[Any, str], Iterator[Any] | None] | None = None
    keys: Callable[[Any, str], Collection[str]] | None = None
    copy_suffix: str = ""
    unread: Mapping[str | bytes, str] = field(default_factory=dict)


def _readers() -> list[TextReader]:
    return [each for found in provided("text_reader") for each in (found if isinstance(found, tuple) else (found,))]


def reader_of(name: str) -> TextReader | None:
    """What reads a file of this name; None for plain text and .jsonl."""
    suffix = PurePath(name.lower()).suffix
    return next((reader for reader in _readers() if suffix in reader.suffixes), None)


@functools.cache
def _unread() -> dict[str | bytes, str]:
    """Why files are not read, by their suffix or beginning."""
    readers = _readers()
    read = {suffix for reader in readers for suffix in reader.suffixes}
    found = {**_UNREAD, **{key: why for reader in readers for key, why in reader.unread.items()}}
    return {key: why for key, why in found.items() if key not in read}


def unread_format(name: str, head: bytes) -> str | None:
    """What is wrong with a file that would be read as plain text but is in another format, and what to do; None for
    other files. A sentence begins with the name of the file and ends with this.

    `name` is without the ending of a compression, `head` the beginning of the decompressed file.
    """
    suffix = PurePath(name).suffix
    head = head.removeprefix(codecs.BOM_UTF8)
    for start, why in _unread().items():
        if isinstance(start, bytes) and head.startswith(start):
            return _unread().get(suffix, why)
    if head[_TAR] == b"ustar":
        return _ARCHIVE
    return _unread().get(suffix)


def looks_like_text(name: str, head: bytes, encoding: str) -> bool:
    """Whether a file is a text in any encoding, perhaps a damaged one, judged by its name and its beginning."""
    if PurePath(name).suffix in _TEXT:
        return True
    if not is_utf8(encoding) and _is_text(head, encoding):
        return True
    if b"\0" in head:
        likely = likely_encoding(head)
        return likely is not None and _is_text(head, likely)
    return _has_few_controls(head)


def _is_text(head: bytes, encoding: str) -> bool:
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(head, final=len(head) < HEAD_BYTES)
    except UnicodeError:
        return False
    return "\0" not in text and _has_few_controls(text.encode(errors="replace"))


def _has_few_controls(head: bytes) -> bool:
    return len(head) - len(head.translate(None, _CONTROL)) <= _MOST_CONTROL * len(head)
