"""The text of an EPUB book: its chapters, in reading order."""

import posixpath
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from minigpt.documents.archive import Archive
from minigpt.documents.limited_reading import RefusedError
from minigpt.documents.limits import MarkupBudget

_CONTAINER, _ENCRYPTION = "META-INF/container.xml", "META-INF/encryption.xml"

_RATIO = 8  # of what is decompressed to the book's size; text has 3 to 6


def epub_text(content: bytes, page_text: Callable[[bytes, MarkupBudget], str]) -> str:
    """The text of the chapters, each once, with an empty line between two; `page_text` reads the XHTML of one.

    Raises: RefusedError for a book that is damaged, encrypted or too large.
    """
    archive = Archive(content, _RATIO)
    container = archive.xml(_CONTAINER)
    package_path = next((file.get("full-path") for file in _elements(container, "rootfile")), None)
    if package_path is None:
        raise RefusedError(f"is damaged: its {_CONTAINER} names no package; download it again")
    package = archive.xml(package_path)
    items = {item.get("id"): item for item in _elements(package, "item")}
    folder = posixpath.dirname(package_path)
    encrypted = _encrypted(archive)
    chapters: dict[str, str] = {}
    for reference in _elements(package, "itemref"):
        item = items.get(reference.get("idref"))
        if item is None or "nav" in (item.get("properties") or "").split():
            continue
        path = posixpath.normpath(posixpath.join(folder, unquote((item.get("href") or "").partition("#")[0])))
        if path in chapters:  # a book names each chapter once
            continue
        if path in encrypted:
            raise RefusedError("is encrypted (digital rights management); only a book without it can be read")
        chapters[path] = page_text(archive.read(path), archive.budget)
    return "\n\n".join(filter(None, chapters.values()))


def _elements(root: Any, name: str) -> Any:
    """The elements with this name in any namespace."""
    return root.iter(f"{{*}}{name}")


def _encrypted(archive: Archive) -> set[str]:
    """The paths of the encrypted members; fonts are often encrypted in books that can be read."""
    if _ENCRYPTION not in archive:
        return set()
    references = _elements(archive.xml(_ENCRYPTION), "CipherReference")
    return {unquote(reference.get("URI") or "") for reference in references}
