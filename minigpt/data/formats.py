"""Recognizes text files, and files of other formats, which are not read as plain text."""

import codecs
from pathlib import PurePath

from minigpt.data.encodings import is_utf8, likely_encoding

HEAD_BYTES = 2**16  # bytes at the beginning of a file that decide

_CONTROL = bytes({*range(32), 127} - set(b"\b\t\n\v\f\r\x1b"))
_MOST_CONTROL = 0.01  # of the bytes of a text: random bytes have a tenth
_TAR = slice(257, 262)  # the bytes of a tar archive that are "ustar"
_TEXT = (".txt", ".text", ".md", ".rst", ".log", ".jsonl", ".ndjson")  # names of texts, whatever is in them

_WORD = "is a document that is read only as .docx; save it as that or as plain text"
_BOOK = "is a book that is read only as .epub; convert it, for example with Calibre"
_SUBTITLES = "has subtitles, which are read only as .srt and .vtt; convert it"
_WEBVTT = "has WebVTT subtitles; rename it to .vtt"
_SHEET = 'is a table; write its column of texts to a .jsonl, with {"text": "..."} on each line'
_TABLE = f"{_SHEET}, or rename it to .txt to read it unchanged"
_SLIDES = "is a presentation, which is not read; save it as .pdf or plain text"
_MARKUP = "is markup; save its text as plain text, or rename it to .txt to read it unchanged"
_MAIL = "is e-mail; save its text as plain text, or rename it to .txt to read it unchanged"
_NOTEBOOK = "is a notebook; convert it, for example with jupyter nbconvert --to markdown"
_ARRAYS = "has arrays of numbers, not text; give the text that they were made of"
_ARCHIVE = "is an archive; unpack it and give the folder or its files"
_BY_NAME = {
    **dict.fromkeys((".doc", ".docm", ".dotx", ".dotm", ".odt", ".rtf", ".wps", ".pages"), _WORD),
    **dict.fromkeys((".mobi", ".azw", ".azw3", ".fb2", ".djvu"), _BOOK),
    **dict.fromkeys((".ass", ".ssa", ".ttml", ".dfxp", ".sub", ".sbv"), _SUBTITLES),
    **dict.fromkeys((".csv", ".tsv"), _TABLE),
    **dict.fromkeys((".xls", ".xlsx", ".xlsm", ".xlsb", ".ods"), _SHEET),
    **dict.fromkeys((".ppt", ".pptx", ".pptm", ".pps", ".ppsx", ".odp"), _SLIDES),
    ".xml": _MARKUP,
    **dict.fromkeys((".eml", ".mbox"), _MAIL),
    **dict.fromkeys((".npy", ".npz"), _ARRAYS),
    ".ipynb": _NOTEBOOK,
    ".lzma": "is compressed by lzma; decompress it with unlzma",
    **dict.fromkeys((".zip", ".tar", ".tgz", ".7z", ".rar"), _ARCHIVE),
}
_BY_CONTENT = {
    b"{\\rtf": _WORD,
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": _WORD,  # Word before 2007
    b"WEBVTT\n": _WEBVTT,
    b"WEBVTT\r": _WEBVTT,
    b"%PDF-": "is a PDF; rename it to .pdf",
    b"PK\x03\x04": _ARCHIVE,
    b"7z\xbc\xaf\x27\x1c": _ARCHIVE,
    b"Rar!\x1a\x07": _ARCHIVE,
    **{b"BZh%d1AY" % level: "is compressed by bzip2; decompress it with bunzip2" for level in range(1, 10)},
    b"\x93NUMPY": _ARRAYS,
    b"\x1f\x9d": "is compressed by compress; decompress it with uncompress",
    b"\x04\x22\x4d\x18": "is compressed by lz4; decompress it with unlz4",
    b"\xfd7zXZ\0": "is compressed by xz; decompress it with unxz",
}


def unread_format(name: str, head: bytes) -> str | None:
    """What is wrong with a file that would be read as plain text but is in another format, and what to do; None for
    other files. A sentence begins with the name of the file and ends with this.

    `name` is without the ending of a compression, `head` the beginning of the decompressed file.
    """
    suffix = PurePath(name).suffix
    head = head.removeprefix(codecs.BOM_UTF8)
    for start, found in _BY_CONTENT.items():
        if head.startswith(start):
            return _BY_NAME.get(suffix, found)
    if head[_TAR] == b"ustar":
        return _ARCHIVE
    return _BY_NAME.get(suffix)


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
