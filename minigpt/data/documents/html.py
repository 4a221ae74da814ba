"""The text of an HTML page, without its markup, scripts and menus."""

import codecs
import re
from typing import Any

from minigpt.data.documents.limits import TagCounter

_CHARSET = re.compile(rb"""(?i)(?:charset|encoding)\s*=\s*["']?\s*([a-z0-9_.:-]{1,40})""")
# Browsers decode a page that declares the first encoding with the second one, which has more characters. Source:
# WHATWG, "Encoding Standard", section 4.2.
_READ_AS = {
    "ascii": "cp1252",
    "iso8859-1": "cp1252",
    "iso8859-9": "cp1254",
    "tis-620": "cp874",
    "gb2312": "gbk",
    "euc_kr": "cp949",
    "shift_jis": "cp932",
}
_HEAD = 2048  # bytes in which a page declares its encoding
_SKIPPED = frozenset(
    ("head", "script", "style", "template", "nav", "svg", "math", "iframe", "object", "noscript", "select", "button")
)
_PARAGRAPHS = frozenset(
    ("p", "h1", "h2", "h3", "h4", "h5", "h6", "blockquote", "pre", "ul", "ol", "dl", "table", "figure", "section")
)
_LINES = frozenset(
    ("div", "li", "dt", "dd", "tr", "hr", "caption", "figcaption", "header", "footer", "main", "article", "aside")
)
_CELLS = frozenset(("td", "th"))
_SPACES = re.compile(r"[ \t\n\r\f]+")


def declared_encoding(page: bytes) -> str | None:
    """The encoding of a page that says which it has, as browsers read it; None if it says none that Python knows."""
    match = _CHARSET.search(page[:_HEAD])
    if match is None:
        return None
    try:
        name = codecs.lookup(match[1].decode("ascii")).name
    except LookupError:
        return None
    return _READ_AS.get(name, name)


def html_text(page: str, tags: TagCounter) -> str:
    """The text of a page: a line for each block, and an empty line around paragraphs and headings.

    Raises: DocumentError for a page with too many tags.
    """
    from lxml import etree

    markup = tags.check(page.encode("utf-8", "replace"))
    parser = etree.HTMLParser(encoding="utf-8", no_network=True, remove_comments=True, remove_pis=True)
    try:
        root = etree.fromstring(markup, parser)
    except etree.XMLSyntaxError:  # a page without any element
        return ""
    if root is None:
        return ""
    writer = _Writer()
    walk: Any = etree.iterwalk(root, events=("start", "end"))
    for event, element in walk:
        name = element.tag if isinstance(element.tag, str) else ""
        if event == "start":
            writer.begin(name)
            if name in _SKIPPED:
                walk.skip_subtree()
            else:
                writer.write(element.text or "")
        else:
            writer.end(name)
            writer.write(element.tail or "" if element is not root else "")
    return writer.text()


class _Writer:
    """Collects text, and turns the borders of blocks into newlines."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._newlines, self._preformatted, self._space = 0, 0, False

    def begin(self, name: str) -> None:
        self._border(name)
        self._preformatted += name == "pre"

    def end(self, name: str) -> None:
        self._preformatted -= name == "pre"
        self._border(name)
        if name in _CELLS:
            self.write(" ")

    def _border(self, name: str) -> None:
        newlines = 2 if name in _PARAGRAPHS else int(name in _LINES or name == "br")
        if newlines:
            self._newlines, self._space = max(self._newlines, newlines), False

    def write(self, text: str) -> None:
        if not self._preformatted:
            text = _SPACES.sub(" ", text)
            if self._newlines or self._space or not self._parts:
                text = text.lstrip(" ")
        if not text:
            return
        if self._newlines and self._parts:
            self._parts.append("\n" * self._newlines)
        self._newlines, self._space = 0, text.endswith(" ")
        self._parts.append(text)

    def text(self) -> str:
        lines = "".join(self._parts).split("\n")
        return "\n".join(line.rstrip() for line in lines).strip("\n")
