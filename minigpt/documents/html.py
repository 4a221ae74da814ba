"""The text of an HTML page, without its markup, scripts and menus."""

import codecs
import re
from typing import Any

from minigpt.documents.limited_reading import RefusedError
from minigpt.documents.limits import TOO_DEEP, MarkupBudget, is_compound, without_soft_hyphens

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
_ENCODINGS = frozenset((  # of the same standard; others, such as punycode, may take long
    "utf-8", "cp866", "iso8859-2", "iso8859-3", "iso8859-4", "iso8859-5", "iso8859-6", "iso8859-7", "iso8859-8",
    "iso8859-10", "iso8859-13", "iso8859-14", "iso8859-15", "iso8859-16", "koi8-r", "koi8-u", "mac-roman", "cp874",
    "cp1250", "cp1251", "cp1252", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp1258", "mac-cyrillic", "gbk",
    "gb18030", "big5", "big5hkscs", "euc_jp", "iso2022_jp", "cp932", "cp949",
))  # fmt: skip
_HEAD = 2048  # bytes in which a page declares its encoding
_SKIPPED = frozenset(
    ("head", "script", "style", "template", "nav", "svg", "iframe", "object", "noscript", "select", "button")
)
# The readings beside the characters of ruby; within a reading that does not end, rb begins the next character.
_READINGS = {"rt": True, "rp": True, "rtc": True, "rb": False}
_PARAGRAPHS = frozenset(
    ("p", "h1", "h2", "h3", "h4", "h5", "h6", "blockquote", "pre", "ul", "ol", "dl", "table", "figure", "section")
)
_LINES = frozenset(
    ("div", "li", "dt", "dd", "tr", "hr", "caption", "figcaption", "header", "footer", "main", "article", "aside")
)
_CELLS = frozenset(("td", "th"))
# The elements of which more is read than their text and the borders of their blocks, so that they stay in a page that
# is nested deeply.
_KEPT = frozenset(name.encode() for name in (*_SKIPPED, *_READINGS, "ruby", "pre", "math", "html", "body"))
_SIGNS = {  # before each part of these elements of a formula, for what is only drawn
    "mfrac": ("", "/"),
    "msup": ("", "^"),
    "msub": ("", "_"),
    "msubsup": ("", "_", "^"),
    "munder": ("", "_"),
    "mover": ("", "^"),
    "munderover": ("", "_", "^"),
}
_SPACES = re.compile(r"[\t\n\r\f][ \t\n\r\f]*| [ \t\n\r\f]+")  # all but single spaces
_PLAIN = re.compile(rb"(?s)<!\[CDATA\[(.*?)(?:\]\]>|\Z)")  # a section of plain text, in XHTML only
# The tokens of a page: comments, declarations, tags.
_TOKEN = re.compile(
    rb"""(?isx)
    <!--(?:-?>|.*?(?:--!?>|\Z))
    | <(?:[!?]|/[^a-z]) [^>]*+ >?
    | <(?P<slash>/?) (?P<name>[a-z][^\s/>]*+)
      (?P<attributes>(?:[^=>]++ | =\s*+ (?:"[^"]*+" | '[^']*+' | [^\s>"'][^\s>]*+)?+ )*+) >?
    """
)
_ATTRIBUTE = re.compile(rb"""([^\s/=>]++)(?:\s*+=\s*+("[^"]*+"|'[^']*+'|[^\s>]*+))?+""")
_READ_ATTRIBUTES = 1 << 16  # bytes of the attributes of an element
_NOT_SHOWN = re.compile(rb"(?i)display\s*:\s*none")
_CLOSED = re.compile(rb"""(?:^|[\s"'])/\Z""")
_NAME = re.compile(rb"[a-z][a-z0-9_.-]{0,30}")
# Elements whose content is not markup, and whether it is text of the page.
_RAW = {b"script": False, b"style": False, b"title": False, b"iframe": False, b"noembed": False, b"noframes": False}
_RAW |= {b"textarea": True, b"xmp": True}
_SIMPLE_TAG = re.compile(rb"<(?P<slash>/?)(?P<name>[a-z][a-z0-9_.-]*)(?P<hidden> hidden)?(?P<closed>/?)>")
_TOO_DEEP = object()
_RAW_END = {name: re.compile(rb"(?i)</%s(?=[\s/>])" % name) for name in _RAW}


def declared_encoding(page: bytes) -> str | None:
    """The encoding of a page that says which it has, as browsers read it; None if it says none that they know."""
    if page.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    match = _CHARSET.search(page[:_HEAD])
    if match is None:
        return None
    try:
        name = codecs.lookup(match[1].decode("ascii")).name
    except LookupError:
        return None
    name = _READ_AS.get(name, name)
    return name if name in _ENCODINGS else None


def html_text(page: bytes, budget: MarkupBudget, xhtml: bool = False) -> str:
    """The text of a page in UTF-8: a line for each block, and an empty line around paragraphs and headings.

    Omits the readings of ruby characters and the elements that are hidden.
    Raises: RefusedError for a page with too many tags, or in which what is not shown is nested too deeply.
    """
    from lxml import etree

    markup = budget.count_nodes(_simplified(budget.count_tags(page), xhtml), attributes=False)
    try:
        root = _parsed(markup)
        if root is _TOO_DEEP:
            root = _parsed(_flat(markup))
    except etree.XMLSyntaxError:  # a page without any element
        return ""
    if root is _TOO_DEEP:
        raise RefusedError(TOO_DEEP)
    if root is None:
        return ""
    writer = _Writer()
    walk: Any = etree.iterwalk(root, events=("start", "end"))
    silent = [False]
    for event, element in walk:
        name = element.tag
        if event == "start":
            writer.begin(name)
            if name in _READINGS:
                silent.append(_READINGS[name])
            if name == "math":
                writer.write(_formula(element))
            if name == "math" or name in _SKIPPED or element.get("hidden") is not None:
                walk.skip_subtree()
            elif not silent[-1]:
                writer.write(element.text or "")
        else:
            if name in _READINGS:
                silent.pop()
            writer.end(name)
            if element is not root and not silent[-1]:
                writer.write(element.tail or "")
    return writer.text()


def _parsed(markup: bytes) -> Any:
    """The root element; _TOO_DEEP if the elements are nested more deeply than libxml2 reads, which is 2,048 levels."""
    from lxml import etree

    parser = etree.HTMLParser(encoding="utf-8", no_network=True, huge_tree=True)
    root = etree.fromstring(markup, parser)
    if any(error.type == etree.ErrorTypes.ERR_RESOURCE_LIMIT for error in parser.error_log):
        return _TOO_DEEP
    return root


def _flat(markup: bytes) -> bytes:
    """The same simplified page with the borders of its blocks as empty elements, so that hardly any are nested."""
    kept: dict[bytes, list[bool]] = {}  # of the open elements with a name, whether their tags are
    n_formulas = 0

    def flat(tag: re.Match[bytes]) -> bytes:
        nonlocal n_formulas
        name, is_end = tag["name"], bool(tag["slash"])
        stack = kept.setdefault(name, [])
        if is_end:
            is_kept = name in _KEPT if not stack else stack.pop()
        else:
            is_kept = name in _KEPT or bool(tag["hidden"]) or n_formulas > 0 or bool(tag["closed"])
            if not tag["closed"]:
                stack.append(is_kept)
        if name == b"math" and not tag["closed"]:
            n_formulas = max(0, n_formulas + (-1 if is_end else 1))
        if is_kept:
            return tag[0]
        text = name.decode()
        if text in _CELLS:
            return b" "
        if text in _PARAGRAPHS:
            return b"<p></p>"
        if text in _LINES or text == "br":
            return b"<br>" if is_end else b"<%s></%s>" % (name, name)
        return b""

    return _SIMPLE_TAG.sub(flat, markup)


def _simplified(page: bytes, xhtml: bool) -> bytes:
    """The same page without comments, scripts and attributes, for which libxml2 needs the square of their number.

    Of the attributes, those are read that hide an element; it then has the attribute "hidden".
    """
    page = page.replace(b"\0", b"").removeprefix(codecs.BOM_UTF8)
    made, at = bytearray(), 0
    while (start := page.find(b"<", at)) >= 0:
        made += page[at:start]
        if xhtml and (plain := _PLAIN.match(page, start)):
            made += plain[1].replace(b"&", b"&amp;").replace(b"<", b"&lt;")
            at = plain.end()
            continue
        token = _TOKEN.match(page, start)
        if token is None:
            made += b"&lt;"
            at = start + 1
            continue
        at = token.end()
        if token["name"] is None:
            continue
        name, attributes = token["name"].lower().rpartition(b":")[2], token["attributes"]
        if not _NAME.fullmatch(name):
            continue
        closed = b"/" if _CLOSED.search(attributes) else b""
        if token["slash"]:
            made += b"</%s>" % name
        elif name not in _RAW or closed:
            made += b"<%s%s%s>" % (name, b" hidden" if _is_hidden(name, attributes) else b"", closed)
        else:
            end = _RAW_END[name].search(page, at)
            content = page[at : end.start() if end else len(page)]
            at += len(content)
            shown = _RAW[name] and not _is_hidden(name, attributes)
            # The end tag that comes next has no start tag, which is an error that is ignored.
            made += content.replace(b"<", b"&lt;") if shown else b""
    made += page[at:]
    return bytes(made)


def _is_hidden(name: bytes, attributes: bytes) -> bool:
    """Whether an element is not shown, except a whole page, which a script may show."""
    lower = attributes[:_READ_ATTRIBUTES].lower()
    if name in (b"html", b"body") or not (b"hidden" in lower or b"none" in lower):
        return False
    found = (each.groups(b"") for each in _ATTRIBUTE.finditer(lower))
    return any(key == b"hidden" or (key == b"style" and _NOT_SHOWN.search(value)) for key, value in found)


def _formula(element: Any) -> str:
    """The text of a formula in MathML, with signs for what is only drawn, as in (a+b)/2 and x^2."""
    name = element.tag
    if name in ("annotation", "annotation-xml"):  # the same formula in another notation
        return ""
    if name in ("mi", "mn", "mo", "mtext", "ms"):
        return _SPACES.sub(" ", "".join(element.itertext()))
    parts = [_formula(child) for child in element]
    if name in ("msqrt", "mroot"):
        return f"√({parts[0] if name == 'mroot' and parts else ''.join(parts)})"
    signs = _SIGNS.get(name, ())
    for place, sign in enumerate(signs[: len(parts)]):
        parts[place] = sign + (f"({parts[place]})" if is_compound(parts[place]) else parts[place])
    return "".join(parts)


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
        lines = without_soft_hyphens("".join(self._parts)).split("\n")
        return "\n".join(line.rstrip() for line in lines).strip("\n")
