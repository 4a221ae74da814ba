"""Formats of documents that are not read: why, and what to do. Names and contents are those of `TextReader.unread`."""

from collections.abc import Mapping

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

UNREAD: Mapping[str | bytes, str] = {
    **dict.fromkeys((".doc", ".docm", ".dotx", ".dotm", ".odt", ".rtf", ".wps", ".pages"), _WORD),
    **dict.fromkeys((".mobi", ".azw", ".azw3", ".fb2", ".djvu"), _BOOK),
    **dict.fromkeys((".ass", ".ssa", ".ttml", ".dfxp", ".sub", ".sbv"), _SUBTITLES),
    **dict.fromkeys((".csv", ".tsv"), _TABLE),
    **dict.fromkeys((".xls", ".xlsx", ".xlsm", ".xlsb", ".ods"), _SHEET),
    **dict.fromkeys((".ppt", ".pptx", ".pptm", ".pps", ".ppsx", ".odp"), _SLIDES),
    ".xml": _MARKUP,
    **dict.fromkeys((".eml", ".mbox"), _MAIL),
    ".ipynb": _NOTEBOOK,
    b"{\\rtf": _WORD,
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": _WORD,  # Word before 2007
    b"WEBVTT\n": _WEBVTT,
    b"WEBVTT\r": _WEBVTT,
    b"%PDF-": "is a PDF; rename it to .pdf",
}
