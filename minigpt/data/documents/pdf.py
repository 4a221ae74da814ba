"""The text of a PDF: that of its pages, in order."""

import io
import logging

from minigpt.data.documents.limits import MAX_PAGES, DocumentError

_NO_TEXT = "has no text; if its pages are pictures, recognize their text first, for example with ocrmypdf"


def pdf_text(content: bytes) -> str:
    """The text of the pages, one after another.

    Raises: DocumentError for a document that is encrypted, has no text, or has too many pages.
    """
    import pypdf

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # its warnings about damage that it repairs
    reader = pypdf.PdfReader(io.BytesIO(content))
    try:
        if reader.is_encrypted and not reader.decrypt(""):
            raise DocumentError("is encrypted; save it without a password")
    except pypdf.errors.DependencyError as error:
        raise DocumentError("is encrypted; save it without a password") from error
    if len(reader.pages) > MAX_PAGES:
        raise DocumentError(f"has {len(reader.pages):,} pages; the maximum is {MAX_PAGES:,}")
    text = "\n".join(page.extract_text() for page in reader.pages)
    if not text.strip():
        raise DocumentError(_NO_TEXT)
    return text
