"""Limits on the work that a document may cause, checked before a library parses it; and what its readers share."""

from minigpt.documents.limited_reading import RefusedError

MAX_FILE = 256 << 20  # bytes of a document
MAX_TAGS = 500_000  # of a document: a parsed element takes about 300 bytes for 4 in the file
MAX_NODES = 750_000  # tags, texts between them, and attributes, which are removed from HTML
MAX_MARKUP = 256 << 20  # bytes of XML and HTML in a document, decompressed
LEAST_MARKUP = 1 << 20  # bytes of them for each time that the document's size may be multiplied; a book has 2 MB
MAX_PAGES = 20_000
MAX_SUBTITLES = 16 << 20  # bytes
TOO_DEEP = "nests its elements too deeply to be read; save its text as a .txt"


class EncodingError(RefusedError):
    """A document that is whole but in another encoding than the one in which it should be read."""


class MarkupBudget:
    """Counts the markup of one document; a parser gets only what was counted."""

    def __init__(self, size: int, ratio: int = 1) -> None:
        """`size` is the number of bytes of the document, and `ratio` how many times that its markup may have."""
        self._limit = min(MAX_MARKUP, ratio * max(LEAST_MARKUP, size))
        self._bytes, self._tags, self._nodes = 0, 0, 0

    def reserve(self, size: int) -> None:
        """Counts markup that is about to be decompressed.

        Raises: RefusedError if the document has too much.
        """
        self._bytes += size
        if self._bytes > self._limit:
            raise RefusedError(
                f"has {self._bytes:,} bytes of text and markup when it is decompressed; the maximum for a file of its "
                f"size is {self._limit:,}"
            )

    def count_tags(self, markup: bytes) -> bytes:
        """The same markup.

        Raises: RefusedError if the document has more than MAX_TAGS.
        """
        self._tags += markup.count(b"<")
        if self._tags > MAX_TAGS:
            raise RefusedError(f"has more than {MAX_TAGS:,} tags; split it into several documents")
        return markup

    def count_nodes(self, markup: bytes, attributes: bool) -> bytes:
        """The same markup; `attributes` says whether it may have any.

        Raises: RefusedError if the document has more than MAX_NODES.
        """
        tags = markup.count(b"<")
        self._nodes += 2 * tags - markup.count(b"><") + (markup.count(b"=") if attributes else 0)
        if self._nodes > MAX_NODES:
            raise RefusedError(
                f"has more than {MAX_NODES:,} tags, attributes and texts between tags; split it into several documents"
            )
        return markup


def without_soft_hyphens(text: str) -> str:
    """A text without the marks for where a word may be cut, which are not shown elsewhere."""
    return text.replace("\xad", "")


def is_compound(part: str) -> bool:
    """Whether a part of a formula needs parentheses after a sign."""
    return len(part) > 1 and not part.isalnum()
