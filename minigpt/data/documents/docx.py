"""The text of a Word document: its paragraphs and tables, in order."""

import io
import zipfile
from collections.abc import Iterator
from typing import Any

from minigpt.data.documents.limits import TagCounter, check_archive, read_member

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_PARAGRAPH, _TABLE, _ROW, _CELL, _RUN = (f"{_W}{name}" for name in ("p", "tbl", "tr", "tc", "r"))
# Elements whose content is text of the document: links, content controls, tracked insertions, but not deletions.
_WRAPPERS = {
    f"{_W}{name}"
    for name in ("hyperlink", "sdt", "sdtContent", "ins", "moveTo", "smartTag", "customXml", "fldSimple", "dir", "bdo")
}
_CHARACTERS = {f"{_W}{name}" for name in ("t", "tab", "ptab", "br", "cr", "noBreakHyphen")}


def docx_text(content: bytes) -> str:
    """The paragraphs, a line each, and the rows of tables, their cells separated by tabs.

    Raises: DocumentError for a document that is too large.
    """
    import docx

    tags = TagCounter()
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        check_archive(archive)
        for name in archive.namelist():
            if name.endswith((".xml", ".rels")):  # python-docx parses all of them
                tags.check(read_member(archive, name))
    return "\n".join(_lines(docx.Document(io.BytesIO(content)).element.body))


def _lines(parent: Any) -> Iterator[str]:
    """The paragraphs and the rows of tables in a body or a cell."""
    for block in _inside(parent, _PARAGRAPH, _TABLE):
        if block.tag == _PARAGRAPH:
            yield "".join(str(each) for run in _inside(block, _RUN) for each in run if each.tag in _CHARACTERS)
        else:
            for row in _inside(block, _ROW):
                yield "\t".join(" ".join(_lines(cell)).replace("\n", " ") for cell in _inside(row, _CELL))


def _inside(parent: Any, *tags: str) -> Iterator[Any]:
    """The elements with these tags in another, also within wrappers."""
    for child in parent:
        if child.tag in tags:
            yield child
        elif child.tag in _WRAPPERS:
            yield from _inside(child, *tags)
