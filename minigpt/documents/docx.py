"""The text of a Word document: its paragraphs and tables in order, then its notes."""

import posixpath
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import unquote

from minigpt.documents.archive import Archive
from minigpt.documents.limited_reading import RefusedError
from minigpt.documents.limits import MarkupBudget, is_compound, without_soft_hyphens

# The namespaces of the elements with text, as Word writes them and in its "strict" files.
_PREFIXES = {
    "{http://schemas.openxmlformats.org/wordprocessingml/2006/main": "w",
    "{http://purl.oclc.org/ooxml/wordprocessingml/main": "w",
    "{http://schemas.openxmlformats.org/officeDocument/2006/math": "m",
    "{http://purl.oclc.org/ooxml/officeDocument/math": "m",
    "{http://schemas.openxmlformats.org/markup-compatibility/2006": "mc",
}
_CHARACTERS = {"w:tab": "\t", "w:ptab": "\t", "w:br": "\n", "w:cr": "\n", "w:noBreakHyphen": "-"}
# Deletions, the reading of a ruby character, and properties, which may hold the old ones of a tracked change.
_SKIPPED = frozenset(("w:del", "w:moveFrom", "w:rt", "w:rPr", "w:pPr", "w:sdtPr", "w:tblPr", "w:trPr", "w:tcPr"))
_REFERENCES = {"w:footnoteReference": "footnotes", "w:endnoteReference": "endnotes"}
# What is written before, between and after the elements of these parts of a formula.
_JOINED = {"m:d": ("(", "|", ")"), "m:m": ("", " ", ""), "m:mr": ("", " ", ""), "m:eqArr": ("", " ", "")}
# The signs before these parts, for what Word draws, such as the line of a fraction; parts of several characters get
# parentheses.
_SIGNS = {"m:num": "", "m:den": "/", "m:sup": "^", "m:sub": "_", "m:lim": "_"}
_OLE = b"\xd0\xcf\x11\xe0"  # the first bytes of an encrypted document, and of a .doc
_RATIO = 16  # of what is decompressed to the document's size; tables compress best
_MOST_FIELDS = 20  # fields in fields; Word has the same limit


class _Styles(NamedTuple):
    """The styles whose text is hidden, by the kind of style."""

    paragraph: frozenset[str | None]  # None is the style of a paragraph that names none
    character: frozenset[str | None]


def docx_text(content: bytes) -> str:
    """The paragraphs, a line each, and the rows of tables, their cells separated by tabs; then foot- and endnotes.

    Text boxes come after the paragraph that they belong to. Omits hidden and deleted text, comments, headers and
    footers.
    Raises: RefusedError for a document that is encrypted, damaged or too large.
    """
    if content.startswith(_OLE):
        raise RefusedError("is encrypted, or a .doc; open it in Word and save it as .docx without a password")
    archive = Archive(content, _RATIO)
    main = next(_targets(archive, "", "officeDocument"), None)
    if main is None:
        raise RefusedError("is damaged: its _rels/.rels names no Word document; save it again")
    root = archive.xml(main)
    if _kind(root) != "w:document":
        raise RefusedError(f"is not a Word document, but has a {root.tag.rpartition('}')[2]!r}; save it as .docx")
    styles = _hidden_styles([archive.xml(path) for path in _targets(archive, main, "styles")])
    reader = _WordReader(styles, archive.budget)
    lines = reader.lines(root)
    for part in _REFERENCES.values():
        for path in _targets(archive, main, part):
            lines += reader.notes(part, archive.xml(path))
    return without_soft_hyphens("\n".join(lines))


def _targets(archive: Archive, source: str, kind: str) -> Iterator[str]:
    """The paths of the parts that a part refers to as this kind, at most one; the document itself is ""."""
    folder, name = posixpath.split(source)
    path = posixpath.join(folder, "_rels", f"{name}.rels")
    if path in archive:
        for each in archive.xml(path).iter("{*}Relationship"):
            if each.get("Type", "").endswith(f"/{kind}") and each.get("TargetMode") != "External":
                yield posixpath.join("/", folder, unquote(each.get("Target", "")))[1:]
                return


@cache
def _kind_of(tag: str) -> str:
    namespace, _, name = tag.rpartition("}")
    return f"{_PREFIXES.get(namespace, '')}:{name}"


def _kind(element: Any) -> str:
    """The name of an element with the usual prefix; ":name" in a namespace that has no text."""
    return _kind_of(element.tag) if isinstance(element.tag, str) else ""


def _child(element: Any, *path: str) -> Any | None:
    """The first element with this path below another."""
    for kind in path:
        element = next((each for each in element if _kind(each) == kind), None)
        if element is None:
            return None
    return element


def _value(element: Any | None, default: str | None = None, name: str = "val") -> str | None:
    """An attribute in the namespace of its element."""
    return default if element is None else element.get(f"{element.tag.rpartition('}')[0]}}}{name}", default)


def _is_on(element: Any | None) -> bool | None:
    """The value of a property that is on or off; None if it is not there."""
    return None if element is None else _value(element, "on") not in ("0", "false", "off")


def _hidden_styles(roots: list[Any]) -> _Styles:
    styles = {
        (_value(each, "", "type"), _value(each, "", "styleId")): each
        for root in roots
        for each in root
        if _kind(each) == "w:style"
    }
    found: dict[tuple[Any, Any], bool] = {}
    for start in styles:
        chain, key = [], start
        while key in styles and key not in found:
            found[key] = False  # also ends a circle of styles
            chain.append(key)
            key = (key[0], _value(_child(styles[key], "w:basedOn")))
        hidden = found.get(key, False)
        for key in reversed(chain):
            own = _is_on(_child(styles[key], "w:rPr", "w:vanish"))
            hidden = found[key] = hidden if own is None else own
    default = [key for key, each in styles.items() if key[0] == "paragraph" and _value(each, "0", "default") == "1"]
    paragraph = {key[1] for key, hidden in found.items() if hidden and key[0] == "paragraph"}
    character = {key[1] for key, hidden in found.items() if hidden and key[0] == "character"}
    return _Styles(frozenset(paragraph | {None for key in default if found[key]}), frozenset(character))


class _WordReader:
    """Reads the parts of one document."""

    def __init__(self, styles: _Styles, budget: MarkupBudget) -> None:
        self._styles, self._budget = styles, budget
        self._notes: list[tuple[str, str | None]] = []  # the notes that the text refers to: their part and id
        self._instructions: set[Any] = set()  # texts in the instruction of a field, which Word does not show

    def lines(self, story: Any) -> list[str]:
        """The lines of a document or a note."""
        self._instructions |= _instructions(story)
        return self._lines(story)

    def notes(self, part: str, root: Any) -> list[str]:
        """The lines of the notes of a part, in the order of the references to them."""
        notes = {_value(each, None, "id"): each for each in root}
        references = dict.fromkeys(id for kind, id in self._notes if kind == part)
        return [line.lstrip() for id in references if id in notes for line in self.lines(notes[id])]

    def _lines(self, parent: Any) -> list[str]:
        """The paragraphs and rows in a body, a cell, a note or a text box."""
        lines: list[list[str]] = []
        joined = False
        for line, joins in self._blocks(parent):
            if joined:
                lines[-1].append(line)
            else:
                lines.append([line])
            joined = joins
        return ["".join(line) for line in lines]

    def _blocks(self, parent: Any) -> list[tuple[str, bool]]:
        """The lines of the paragraphs and rows, each with whether the next line continues it."""
        blocks: list[tuple[str, bool]] = []
        for child in parent:
            kind = _kind(child)
            if kind == "w:p":
                blocks += self._paragraph(child)
            elif kind == "w:tbl":
                blocks += [(self._row(row), False) for row in _inside(child, "w:tr", "w:trPr", "w:del")]
            elif kind == "mc:AlternateContent":
                blocks += self._alternative(child, self._blocks)
            elif kind == "w:altChunk":
                raise RefusedError("has its text in a file inside it (altChunk); open it in Word and save it again")
            elif kind not in _SKIPPED:
                blocks += self._blocks(child)
        return blocks

    def _row(self, row: Any) -> str:
        cells = _inside(row, "w:tc", "w:tcPr", "w:cellDel")
        text = "\t".join(" ".join(self._lines(cell)).replace("\n", " ") for cell in cells)
        self._budget.reserve(len(text))  # a table in a table is written twice
        return text

    def _paragraph(self, paragraph: Any) -> list[tuple[str, bool]]:
        properties = _child(paragraph, "w:pPr")
        style, joins = None, False
        if properties is not None:
            style = _value(_child(properties, "w:pStyle"))
            # The end of a paragraph is deleted or hidden, or the paragraph is a large initial.
            ends = [_child(properties, "w:rPr", f"w:{name}") for name in ("del", "moveFrom")]
            joins = any(each is not None for each in ends)
            joins |= _value(_child(properties, "w:framePr"), "none", "dropCap") != "none"
        hidden = style in self._styles.paragraph
        joins |= self._is_hidden(properties, hidden)
        found = self._texts(paragraph, hidden)
        text = "".join(each for each in found if isinstance(each, str)).strip("\n")
        boxes = [(line, False) for each in found if not isinstance(each, str) for line in each]
        return [(text, joins and not boxes), *boxes]

    def _texts(self, parent: Any, hidden: bool) -> list[str | list[str]]:
        """The texts in a paragraph or a part of it, and the lines of each text box; `hidden` is its style's."""
        texts: list[str | list[str]] = []
        for child in parent:
            kind = _kind(child)
            if kind in ("w:t", "m:t"):
                if child.text and child not in self._instructions:
                    texts.append(_in_font(child.text, parent))
            elif kind in _CHARACTERS:
                texts.append(_CHARACTERS[kind])
            elif kind == "w:r":
                if not self._is_hidden(child, hidden):
                    texts += self._texts(child, hidden)
            elif kind == "w:sym":
                texts.append(symbol(_value(child, "", "font") or "", int(_value(child, "FFFD", "char") or "FFFD", 16)))
            elif kind in _REFERENCES:
                self._notes.append((_REFERENCES[kind], _value(child, None, "id")))
            elif kind == "w:txbxContent":
                texts += filter(None, [self._lines(child)])
            elif kind == "mc:AlternateContent":
                texts += self._alternative(child, lambda each: self._texts(each, hidden))
            elif kind.startswith("m:"):
                texts += self._formula(kind, child, hidden)
            elif kind not in _SKIPPED:
                texts += self._texts(child, hidden)
        return texts

    def _formula(self, kind: str, element: Any, hidden: bool) -> list[str | list[str]]:
        """A part of a formula, with the signs that Word keeps in its properties or draws, as in (a+b)/2 and x^2."""
        if kind in _JOINED:
            properties = _child(element, "m:dPr") if kind == "m:d" else None
            start, between, end = (
                _value(None if properties is None else _child(properties, f"m:{name}Chr"), default) or ""
                for name, default in zip(("beg", "sep", "end"), _JOINED[kind], strict=True)
            )
            parts = [self._texts([each], hidden) for each in element if _kind(each) in ("m:e", "m:mr")]
            return [start, *[each for part in parts for each in (between, *part)][1:], end]
        if kind == "m:nary":
            texts: list[str | list[str]] = [_value(_child(element, "m:naryPr", "m:chr"), "∫") or ""]
            for each in element:
                texts += [*([" "] if _kind(each) == "m:e" else []), *self._texts([each], hidden)]
            return texts
        inside = self._texts(element, hidden)
        if kind == "m:fName":
            return [*inside, " "]
        if kind == "m:rad":
            return ["√", *inside]
        if kind == "m:acc":
            return [*inside, _value(_child(element, "m:accPr", "m:chr"), "\u0302") or ""]
        if kind not in _SIGNS or not inside:
            return inside
        text = "".join(each for each in inside if isinstance(each, str))
        return [_SIGNS[kind], *(["(", *inside, ")"] if is_compound(text) else inside)]

    def _is_hidden(self, element: Any | None, hidden: bool) -> bool:
        """Whether a run is hidden, or the end of a paragraph with these properties."""
        properties = None if element is None else _child(element, "w:rPr")
        if properties is None:
            return hidden
        own = _is_on(_child(properties, "w:vanish"))
        style = _value(_child(properties, "w:rStyle"))
        # A style of the run switches what the paragraph's style says.
        return own if own is not None else hidden != (style is not None and style in self._styles.character)

    def _alternative(self, element: Any, read: Callable[[Any], list[Any]]) -> list[Any]:
        """What the first of the alternatives for different versions of Word has."""
        for each in element:
            before = len(self._notes)
            found = read(each)
            if any(each[0] for each in found):  # a text, or the first line of a block
                return found
            del self._notes[before:]
        return []


def _inside(parent: Any, tag: str, properties: str, deleted: str) -> Iterator[Any]:
    """The rows of a table or the cells of a row, also within content controls, without deleted ones."""
    for child in parent:
        kind = _kind(child)
        if kind == tag:
            if _child(child, properties, deleted) is None:
                yield child
        elif kind not in _SKIPPED:
            yield from _inside(child, tag, properties, deleted)


def _in_font(text: str, run: Any) -> str:
    """A text in which characters of a symbol font are those that the font shows."""
    if not any("\uf000" <= each <= "\uf0ff" for each in text):
        return text
    fonts = _child(run, "w:rPr", "w:rFonts")
    font = _value(fonts, "", "ascii") or ""
    return "".join(symbol(font, ord(each)) if "\uf000" <= each <= "\uf0ff" else each for each in text)


def _instructions(story: Any) -> set[Any]:
    """The texts within the instructions of fields, which are the results of fields in them."""
    hidden: set[Any] = set()
    fields: list[tuple[bool, list[Any]]] = []  # whether its result has begun, and the texts before that
    for element in story.iter("{*}fldChar", "{*}t"):
        kind, change = _kind(element), _value(element, "", "fldCharType")
        if kind == "w:t":
            within = next((texts for shown, texts in reversed(fields[-_MOST_FIELDS:]) if not shown), None)
            if within is not None:
                within.append(element)
        elif change == "begin":
            fields.append((False, []))
        elif change == "separate" and fields:
            fields[-1] = (True, fields[-1][1])
        elif change == "end" and fields:
            hidden.update(fields.pop()[1])  # those of a field that does not end are shown
    return hidden


# From 0x20 and from 0xA0. Source: Unicode's SYMBOL.TXT.
_SYMBOL = dict(
    enumerate(
        " !∀#∃%&∋()∗+,−./0123456789:;<=>?≅ΑΒΧΔΕΦΓΗΙϑΚΛΜΝΟΠΘΡΣΤΥςΩΞΨΖ[∴]⊥_‾αβχδεφγηιϕκλμνοπθρστυϖωξψζ{|}∼",
        0x20,
    )
)
_SYMBOL |= enumerate(
    "€ϒ′≤⁄∞ƒ♣♦♥♠↔←↑→↓°±″≥×∝∂•÷≠≡≈…⏐⎯↵ℵℑℜ℘⊗⊕∅∩∪⊃⊇⊄⊂⊆∈∉∠∇®©™∏√⋅¬∧∨⇔⇐⇑⇒⇓◊〈®©™∑⎛⎜⎝⎡⎢⎣⎧⎨⎩⎪\ufffd〉∫⌠⎮⌡⎞⎟⎠⎤⎥⎦⎫⎬⎭",
    0xA0,
)
# Those that Word writes when it corrects what is typed, such as --> and :), those of bullets, and those of forms.
_WINGDINGS = {
    0x4A: "☺", 0x4B: "😐", 0x4C: "☹", 0x6C: "●", 0x6E: "■", 0x6F: "□", 0xA7: "▪", 0xA8: "◻", 0xD8: "➢", 0xDF: "←",
    0xE0: "→", 0xE7: "⬅", 0xE8: "➔", 0xF3: "⇔", 0xFB: "✗", 0xFC: "✓", 0xFD: "☒", 0xFE: "☑",
}  # fmt: skip
_FONTS = {"symbol": _SYMBOL, "wingdings": _WINGDINGS}


def symbol(font: str, code: int) -> str:
    """The character with a code in a font, which may be in Unicode's private area; U+FFFD if it is not known."""
    if 0xF000 <= code <= 0xF0FF or code < 0x100:
        return _FONTS.get(font.casefold(), {}).get(code & 0xFF, "\ufffd")
    return chr(code) if code < 0x110000 and not 0xD800 <= code < 0xE000 else "\ufffd"
