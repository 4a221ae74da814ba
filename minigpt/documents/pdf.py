"""The text of a PDF: that of its pages, in order, read in a child process that may take only so much."""

import io
from collections.abc import Iterator

from minigpt.documents.limited_reading import RefusedError, read_limited
from minigpt.documents.limits import MAX_PAGES

_SECONDS, _SECONDS_PER_MB = 5, 60  # of computing; pypdf takes about 10 for 1 MB of text
_MEMORY, _MEMORY_PER_BYTE = 1 << 30, 16  # bytes


def pdf_text(content: bytes) -> str:
    """The text of the pages, one after another.

    Raises: RefusedError for a document that is encrypted, has no text or too many pages, or takes too much; ValueError
    with pypdf's reason for one that is damaged.
    """
    (text,) = read_limited(
        read_pages,
        content=content,
        packages=("pypdf",),
        seconds=_SECONDS + _SECONDS_PER_MB * len(content) // (1 << 20),
        memory=_MEMORY + _MEMORY_PER_BYTE * len(content),
        advice="save it again, or give its text as a .txt",
    )
    return str(text)


def read_pages(content: bytes = b"") -> Iterator[str]:
    """The text of the pages, in the child process."""
    import pypdf

    reader = pypdf.PdfReader(io.BytesIO(content))
    try:
        if reader.is_encrypted and not reader.decrypt(""):
            raise RefusedError("is encrypted; save it without a password")
    except pypdf.errors.DependencyError as error:
        raise RefusedError("is encrypted; save it without a password") from error
    if len(reader.pages) > MAX_PAGES:
        raise RefusedError(f"has {len(reader.pages):,} pages; the maximum is {MAX_PAGES:,}")
    text = "\n".join(page.extract_text() for page in reader.pages)
    if not text.strip():
        raise RefusedError("has no text; if its pages are pictures, recognize their text first, as ocrmypdf does")
    yield text
