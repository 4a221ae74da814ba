"""The text of an EPUB book: its chapters, in reading order."""

import io
import posixpath
import zipfile
from typing import Any
from urllib.parse import unquote

from minigpt.data.documents.html import declared_encoding, html_text
from minigpt.data.documents.limits import DocumentError, TagCounter, check_archive, read_member

_CONTAINER, _ENCRYPTION = "META-INF/container.xml", "META-INF/encryption.xml"


def epub_text(content: bytes) -> str:
    """The text of the chapters, with an empty line between two.

    Raises: DocumentError for a book that is damaged, encrypted or too large.
    """
    tags = TagCounter()
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        check_archive(archive)
        container = _parse(archive, _CONTAINER, tags)
        package_path = next((file.get("full-path") for file in _elements(container, "rootfile")), None)
        if package_path is None:
            raise DocumentError(f"is damaged: its {_CONTAINER} names no package; download it again")
        package = _parse(archive, package_path, tags)
        items = {item.get("id"): item for item in _elements(package, "item")}
        folder = posixpath.dirname(package_path)
        encrypted = _encrypted(archive, tags)
        chapters = []
        for reference in _elements(package, "itemref"):
            item = items.get(reference.get("idref"))
            if item is None or "nav" in (item.get("properties") or "").split():
                continue
            path = posixpath.normpath(posixpath.join(folder, unquote(item.get("href") or "")))
            if path in encrypted:
                raise DocumentError("is encrypted (digital rights management); only a book without it can be read")
            page = read_member(archive, path)
            chapters.append(html_text(page.decode(declared_encoding(page) or "utf-8", "replace"), tags))
    return "\n\n".join(filter(None, chapters))


def _parse(archive: zipfile.ZipFile, name: str, tags: TagCounter) -> Any:
    """The root element of an XML member."""
    from lxml import etree

    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False)
    return etree.fromstring(tags.check(read_member(archive, name)), parser)


def _elements(root: Any, name: str) -> Any:
    """The elements with this name in any namespace."""
    return root.iter(f"{{*}}{name}")


def _encrypted(archive: zipfile.ZipFile, tags: TagCounter) -> set[str]:
    """The paths of the encrypted members; fonts are often encrypted in books that can be read."""
    if _ENCRYPTION not in archive.namelist():
        return set()
    references = _elements(_parse(archive, _ENCRYPTION, tags), "CipherReference")
    return {unquote(reference.get("URI") or "") for reference in references}
