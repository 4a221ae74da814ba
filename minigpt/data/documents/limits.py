"""Limits on the work that a document may cause, which are checked before a library parses it."""

MAX_FILE = 256 << 20  # bytes of a document
MAX_TAGS = 500_000  # of a document: a parsed element takes about 300 bytes for 4 in the file
MAX_ATTRIBUTES = 500_000  # of a document in XML; the attributes of HTML are removed before it is parsed
MAX_MARKUP = 256 << 20  # bytes of XML and HTML in a document, decompressed
MARKUP = 16 << 20  # bytes of them that any document may have; a book has 2 MB
MARKUP_RATIO = 16  # and how many times its size a larger document may have; tables compress best
MAX_PAGES = 20_000
MAX_SUBTITLES = 16 << 20  # bytes


class DocumentError(Exception):
    """A document that cannot be read; the message continues "NAME …"."""


class Budget:
    """Counts the markup of one document; a parser gets only what was counted."""

    def __init__(self, size: int) -> None:
        """`size` is the number of bytes of the document."""
        self._limit = min(MAX_MARKUP, max(MARKUP, MARKUP_RATIO * size))
        self._bytes, self._tags, self._attributes = 0, 0, 0

    def reserve(self, size: int) -> None:
        """Counts markup that is about to be decompressed.

        Raises: DocumentError if the document has too much.
        """
        self._bytes += size
        if self._bytes > self._limit:
            raise DocumentError(
                f"has {self._bytes:,} bytes of text and markup when it is decompressed; the maximum for a file of its "
                f"size is {self._limit:,}"
            )

    def check(self, markup: bytes, attributes: bool = True) -> bytes:
        """The same markup.

        Raises: DocumentError if the document has too many tags, or attributes where these are parsed.
        """
        self._tags += markup.count(b"<")
        if self._tags > MAX_TAGS:
            raise DocumentError(f"has more than {MAX_TAGS:,} tags; split it into several documents")
        self._attributes += markup.count(b"=") if attributes else 0
        if self._attributes > MAX_ATTRIBUTES:
            raise DocumentError(f"has more than {MAX_ATTRIBUTES:,} attributes; split it into several documents")
        return markup


def without_soft_hyphens(text: str) -> str:
    """A text without the marks for where a word may be cut, which are not shown elsewhere."""
    return text.replace("\xad", "")
