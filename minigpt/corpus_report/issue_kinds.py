"""What trouble in a text looks like, kind by kind, and what to do about each; it reads no files."""

import re
from dataclasses import dataclass

UNDECODABLE, MOJIBAKE, DECOMPOSED = "invalid UTF-8", "mojibake", "decomposed characters"
TRAILING, LICENCE = "trailing spaces", "Project Gutenberg's licence"

# What the bytes of UTF-8 turn into where a program takes them for Windows-1252, or Latin-1 where that has none.
_AS_1252 = {bytes([byte]).decode("cp1252", "replace").replace("\ufffd", chr(byte)): byte for byte in range(0x80, 0x100)}
_LATER = "".join(char for char, byte in _AS_1252.items() if byte < 0xC0)  # bytes of a character behind its first


@dataclass(frozen=True)
class Symptom:
    """One kind of trouble: its pattern, and the characters of which a text with it has at least one.

    Bytes that are no UTF-8 are in the text as lone surrogates.
    """

    kind: str
    telltale: re.Pattern[str]
    pattern: re.Pattern[str]
    advice: str


def _symptom(kind: str, pattern: str, advice: str, telltale: str | None = None) -> Symptom:
    return Symptom(kind, re.compile(telltale or pattern), re.compile(pattern), advice)


# The gravest first.
SYMPTOMS = (
    _symptom(
        UNDECODABLE,
        r"[\udc80-\udcff]+",
        "training stops there; save the text as UTF-8 (iconv -f WINDOWS-1252 -t UTF-8), or train with "
        "--encoding-errors replace",
    ),
    _symptom(
        MOJIBAKE,
        # Where two such characters may well stand together (French: café »), several must in a row. The set in front
        # lets the search pass over all other characters at once.
        f"[ÂÃâðÐÑÎÏ×ØÙã-ï](?:(?<=[ÂÃ])[{_LATER}]|(?<=â)[€‚„†ˆ‰‹Œ\x81][{_LATER}]|(?<=ð)[{_LATER}]{{3}}|"
        f"(?<=[ÐÑÎÏ×ØÙ])[{_LATER}](?:[ÐÑÎÏ×ØÙ][{_LATER}])+|(?<=[ã-ï])[{_LATER}]{{2}}(?:[ã-ï][{_LATER}]{{2}})+)",
        "UTF-8 was read as Windows-1252 and saved again; ftfy (pip install ftfy) mends it",
        telltale="[ÂÃâðÐÑÎÏ×ØÙã-ï]",
    ),
    _symptom(
        "replacement characters",
        "\ufffd",
        "characters were lost before this file was written (U+FFFD); go back to its source if you can",
    ),
    _symptom("byte order marks", "\ufeff", "left where files were joined; remove U+FEFF"),
    _symptom(
        "C1 control characters",
        r"[\x80-\x84\x86-\x9f]+",
        "mostly Windows-1252 that was read as Latin-1: recode the file's source from WINDOWS-1252",
    ),
    _symptom(
        DECOMPOSED,
        r"[^\W\d_][\u0300-\u036f]+",
        "a letter and its accent are two characters here; bring all text into one form, e.g. "
        "unicodedata.normalize('NFC', text)",
        telltale=r"[\u0300-\u036f]",
    ),
    _symptom(
        "zero-width characters",
        r"[\u200b\u2060\u180e]|(?<=[\x20-\x7e])[\u200c\u200d]",
        "they cannot be seen and split words; remove them",
        telltale=r"[\u200b\u2060\u180e\u200c\u200d]",
    ),
    _symptom(
        "direction marks",
        r"[\u200e\u200f\u202a-\u202e\u2066-\u2069]",
        "they cannot be seen; remove them unless the text mixes right-to-left and left-to-right scripts",
    ),
    _symptom("soft hyphens", "\xad", "they cannot be seen and split words; remove U+00AD"),
    _symptom(
        "private-use characters",
        "[\ue000-\uf8ff\U000f0000-\U0010fffd]+",
        "they mean something in one font only, often after a PDF; replace them by what they stand for",
    ),
    _symptom("other line separators", "[\x85\u2028\u2029]", "line ends that few programs know; replace them by \\n"),
    _symptom(
        "words of two scripts",
        "[A-Za-z][\u0400-\u04ff]|[\u0400-\u04ff][A-Za-z]",
        "look-alike letters of another script, perhaps after character recognition; put the right ones",
        telltale="[\u0400-\u04ff]",
    ),
    _symptom("zero bytes", r"\0", "they are no text; find out what wrote them and remove them"),
    _symptom(
        "control characters",
        r"[\x01-\x08\x0b\x0e-\x1f\x7f]+",
        "a model learns to write them; remove them, e.g. with tr -d '\\001-\\010\\013\\016-\\037\\177'",
    ),
    _symptom(
        LICENCE,
        r"\*\*\* ?(?:START|END) OF TH(?:E|IS) PROJECT GUTENBERG[^\n*]*\*\*\*|"
        r"P(?:roject|ROJECT) G(?:utenberg|UTENBERG)(?:[-™]tm|™)? (?i:licen[sc]e)|"
        r"Produced by [^\n]{0,80}(?:Distributed Proofread|Project Gutenberg)",
        "it is not the book, and is the same in all of them; cut what is before the START line and after the END line",
        telltale="P",
    ),
    _symptom(
        "HTML remains",
        r"</?(?:p|br|hr|div|span|a|b|i|u|em|strong|font|table|tr|td|th|ul|ol|li|h[1-6]|img|sup|sub|pre|code|html|head|"
        r"body|script|style|meta|link|blockquote|center|ref)\b[^<>\n]{0,300}>|"
        r"&(?:nbsp|amp|lt|gt|quot|apos|[mn]dash|hellip|#\d{1,6}|#[xX][0-9a-fA-F]{1,5});",
        "the model will write markup; take the text out of it, e.g. with html2text, unless that is what it is to learn",
        telltale="[<&]",
    ),
    _symptom(
        TRAILING,
        r"(?m)[ \t](?=\r?$)",
        "they cost tokens and teach nothing; sed -i 's/[ \\t]*$//' removes them",
        telltale=r"[ \t]",
    ),
)


def undone(mojibake: str) -> str | None:
    """What characters were before UTF-8 was taken for Windows-1252; None where they are no such thing."""
    try:
        return bytes(_AS_1252.get(char, ord(char) if char.isascii() else 0xFF) for char in mojibake).decode()
    except UnicodeDecodeError:
        return None
