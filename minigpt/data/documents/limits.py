"""Limits on documents, which are checked before a library parses them: their sizes, their members and their tags."""

import zipfile
from pathlib import PurePosixPath

MAX_FILE = 256 << 20  # bytes of a document
MAX_MEMBER = 64 << 20  # bytes of a text member of a zip file, decompressed; a book has 2 MB
MAX_MEMBERS = 256 << 20  # bytes of all members together
MAX_TAGS = 500_000  # of a document: a parsed element takes about 300 bytes for 4 in the file
MAX_PAGES = 20_000
MAX_SUBTITLES = 16 << 20  # bytes


class DocumentError(Exception):
    """A document that cannot be read; the message continues "NAME …"."""


class TagCounter:
    """Counts the tags of the XML or HTML that belongs to one document."""

    def __init__(self) -> None:
        self._count = 0

    def check(self, markup: bytes) -> bytes:
        """The same markup.

        Raises: DocumentError if the document has more than MAX_TAGS.
        """
        self._count += markup.count(b"<")
        if self._count > MAX_TAGS:
            raise DocumentError(f"has more than {MAX_TAGS:,} tags; split it into several documents")
        return markup


def check_archive(archive: zipfile.ZipFile) -> None:
    """Checks how much a zip file would hold if it was decompressed; reading a member stops at the size checked here.

    Raises: DocumentError.
    """
    total = sum(member.file_size for member in archive.infolist())
    if total > MAX_MEMBERS:
        raise DocumentError(f"would have {total:,} bytes if it was decompressed; the maximum is {MAX_MEMBERS:,}")


def read_member(archive: zipfile.ZipFile, name: str) -> bytes:
    """A member of a zip file, decompressed.

    Raises: DocumentError if it is missing, encrypted or too large.
    """
    try:
        member = archive.getinfo(str(PurePosixPath(name)))
    except KeyError:
        raise DocumentError(f"is damaged: it has no {name!r}; download it again") from None
    if member.flag_bits & 1:
        raise DocumentError("is encrypted; save it without a password")
    if member.file_size > MAX_MEMBER:
        raise DocumentError(f"has a part of {member.file_size:,} bytes; the maximum is {MAX_MEMBER:,}")
    return archive.read(member)
