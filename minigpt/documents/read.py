"""Reads the text of a document of any format, within limits."""

import warnings
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from minigpt.bounded_reading import read_regular
from minigpt.data.encodings import encoding_advice, likely_encoding
from minigpt.data.formats import TextReader
from minigpt.data.source_files import GZIP_MAGIC
from minigpt.data.zstd import MAGIC as ZSTD_MAGIC
from minigpt.documents.docx import docx_text
from minigpt.documents.epub import epub_text
from minigpt.documents.html import declared_encoding, html_text
from minigpt.documents.limited_reading import RefusedError
from minigpt.documents.limits import MAX_FILE, MAX_SUBTITLES, TOO_DEEP, EncodingError, MarkupBudget
from minigpt.documents.pdf import pdf_text
from minigpt.documents.subtitles import srt_text, vtt_text
from minigpt.documents.unread_formats import UNREAD
from minigpt.errors import DataError, UndecodableError, reason_of
from minigpt.optional_packages import check_installed

# Bytes that are invalid, which are half of surrogate pairs in Python's texts, pass libxml2 as characters of no meaning.
_TO_HTML = {0xDC00 + byte: 0x10FE00 + byte for byte in range(0x80, 0x100)}
_FROM_HTML = {there: here for here, there in _TO_HTML.items()}


class _Format(NamedTuple):
    """The name of a format, the modules that read it, and the function that does."""

    name: str
    modules: tuple[str, ...]
    read: Callable[[bytes, str, str], str]  # takes the encoding and what to do about errors in it


def _html(content: bytes, encoding: str, errors: str, xhtml: bool) -> str:
    return _page_text(content, MarkupBudget(len(content)), encoding, errors, xhtml)


def _epub(content: bytes, encoding: str, errors: str) -> str:
    return epub_text(content, partial(_page_text, encoding=encoding, errors=errors, xhtml=True))


def _page_text(content: bytes, budget: MarkupBudget, encoding: str, errors: str, xhtml: bool) -> str:
    text = _decoded(content, encoding, errors, declared_encoding(content))
    try:
        return html_text(text.encode(), budget, xhtml)
    except UnicodeEncodeError:
        page = text.translate(_TO_HTML).encode("utf-8", "replace")
    return html_text(page, budget, xhtml).translate(_FROM_HTML)


def _subtitles(read: Callable[[str], str], content: bytes, encoding: str, errors: str) -> str:
    if len(content) > MAX_SUBTITLES:
        raise RefusedError(f"has {len(content):,} bytes; the maximum of subtitles is {MAX_SUBTITLES:,}")
    return read(_decoded(content, encoding, errors))


def _binary(read: Callable[[bytes], str], content: bytes, _encoding: str, _errors: str) -> str:
    text = read(content)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return text.encode("utf-8", "replace").decode()
    return text


_FORMATS: Mapping[str, _Format] = {
    ".epub": _Format("an EPUB", ("lxml",), _epub),
    **dict.fromkeys((".html", ".htm"), _Format("an HTML page", ("lxml",), partial(_html, xhtml=False))),
    ".xhtml": _Format("an XHTML page", ("lxml",), partial(_html, xhtml=True)),
    ".docx": _Format("a Word document", ("lxml",), partial(_binary, docx_text)),
    ".pdf": _Format("a PDF", ("pypdf",), partial(_binary, pdf_text)),
    ".srt": _Format("an SRT file", (), partial(_subtitles, srt_text)),
    ".vtt": _Format("a WebVTT file", (), partial(_subtitles, vtt_text)),
}


def read_document(path: Path, name: str, encoding: str = "utf-8", errors: str = "strict") -> str:
    """The text of a document; `name` is what errors call it.

    The encoding is for HTML that declares none, a chapter of an EPUB included, and for subtitles. If `errors` is
    "replace", their invalid bytes are in the text as `surrogateescape` decodes them.
    Raises: MissingPackageError if the package that reads it is not installed; UndecodableError if it is in another
    encoding; DataError if it cannot be read.
    """
    form = _FORMATS[path.suffix.lower()]
    check_installed(f"reading {name}, {form.name},", *form.modules)
    try:
        content = read_regular(path, MAX_FILE)
    except OSError as error:
        raise DataError(f"{name} cannot be read ({reason_of(error)})") from error
    if content.startswith((GZIP_MAGIC, ZSTD_MAGIC)):
        ending, program = (".gz", "gunzip") if content.startswith(GZIP_MAGIC) else (".zst", "unzstd")
        raise DataError(f"{name} is compressed; add {ending} to its name and decompress it with {program}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the libraries, about damage that they repair
            text = form.read(content, encoding, errors)
    except EncodingError as error:
        raise UndecodableError(f"{name} {error}") from error
    except RefusedError as error:
        raise DataError(f"{name} {error}") from error
    except RecursionError as error:
        raise DataError(f"{name} {TOO_DEEP}") from error
    except zipfile.BadZipFile as error:
        raise DataError(f"{name} is damaged: it is not {form.name}; download it again") from error
    except Exception as error:  # a library may raise anything for a damaged document
        reason = " ".join(str(error).split())[:100] or type(error).__name__
        raise DataError(f"{name} is damaged, or not {form.name} ({reason}); save it again") from error
    return text.replace("\0", "")


def _decoded(content: bytes, encoding: str, errors: str, declared: str | None = None) -> str:
    """The text in UTF-8 if it is that, else in the encoding that it declares, else in the one given."""
    for name in ("utf-8-sig", *([declared] if declared else []), encoding):
        try:
            return content.decode(name)
        except UnicodeError:
            continue
    if errors == "replace":
        try:
            return content.decode(declared or encoding, "surrogateescape")
        except UnicodeError:  # of bytes that are invalid where they are, though they are ASCII
            return content.decode(declared or encoding, "replace")
    raise EncodingError(f"is not {encoding.upper()}; {encoding_advice(likely_encoding(content))}")


reader = TextReader(suffixes=tuple(_FORMATS), text=read_document, unread=UNREAD)
