"""The kinds of issues in the characters of a text, each with its pattern and advice."""

import re
from dataclasses import dataclass

UNDECODABLE, MOJIBAKE, DECOMPOSED = "invalid bytes", "mojibake", "decomposed characters"
TRAILING, LICENSE = "trailing spaces", "Project Gutenberg's licence"

# The characters that UTF-8 bytes become when read as Windows-1252, or as Latin-1 if Windows-1252 has none.
_AS_1252 = {bytes([byte]).decode("cp1252", "replace").replace("\ufffd", chr(byte)): byte for byte in range(0x80, 0x100)}
_CONT = "".join(char for char, byte in _AS_1252.items() if byte < 0xC0)  # continuation bytes of UTF-8


@dataclass(frozen=True)
class IssueKind:
    """One kind of issue: the pattern of its occurrences, and `required`, characters without which none can occur.

    Bytes that are invalid in the file's encoding are lone surrogates in the text.
    """

    name: str
    required: re.Pattern[str]
    pattern: re.Pattern[str]
    advice: str


def _kind(name: str, pattern: str, advice: str, required: str | None = None) -> IssueKind:
    return IssueKind(name, re.compile(required or pattern), re.compile(pattern), advice)


# The most serious first.
ISSUE_KINDS = (
    _kind(
        UNDECODABLE,
        r"[\udc00-\udcff]+",
        "training stops at the first",  # and what to do about it depends on the file and its bytes
    ),
    _kind(
        MOJIBAKE,
        # If two such characters are common in good text (French: café »), several must follow one another. The set
        # at the start of the pattern lets the search skip all other characters quickly.
        f"[ÂÃâðÐÑÎÏ×ØÙã-ï](?:(?<=[ÂÃ])[{_CONT}]|(?<=â)[€‚„†ˆ‰‹Œ\x81][{_CONT}]|(?<=ð)[{_CONT}]{{3}}|"
        f"(?<=[ÐÑÎÏ×ØÙ])[{_CONT}](?:[ÐÑÎÏ×ØÙ][{_CONT}])+|(?<=[ã-ï])[{_CONT}]{{2}}(?:[ã-ï][{_CONT}]{{2}})+)",
        "UTF-8 was read as Windows-1252 and saved again; the Python package ftfy repairs it",
        required="[ÂÃâðÐÑÎÏ×ØÙã-ï]",
    ),
    _kind(
        "replacement characters",
        "\ufffd",
        "characters were lost before this file was written (U+FFFD); use the original file if you can",
    ),
    _kind("byte order marks", "\ufeff", "left over from joining files; remove U+FEFF"),
    _kind(
        "C1 control characters",
        r"[\x80-\x84\x86-\x9f]+",
        "usually Windows-1252 that was read as Latin-1; convert the original file from WINDOWS-1252",
    ),
    _kind(
        DECOMPOSED,
        r"[^\W\d_][\u0300-\u036f]+",
        "a letter and its accent are two characters; normalize the text, e.g. unicodedata.normalize('NFC', text)",
        required=r"[\u0300-\u036f]",
    ),
    _kind(
        "zero-width characters",
        r"[\u200b\u2060\u180e]|(?<=[\x20-\x7e])[\u200c\u200d]",
        "invisible, and they split words; remove them",
        required=r"[\u200b\u2060\u180e\u200c\u200d]",
    ),
    _kind(
        "direction marks",
        r"[\u200e\u200f\u202a-\u202e\u2066-\u2069]",
        "invisible; remove them unless the text mixes right-to-left and left-to-right scripts",
    ),
    _kind("soft hyphens", "\xad", "invisible, and they split words; remove U+00AD"),
    _kind(
        "private-use characters",
        "[\ue000-\uf8ff\U000f0000-\U0010fffd]+",
        "they have a meaning in one font only, often after converting a PDF; replace them with real characters",
    ),
    _kind(
        "other line separators", "[\x85\u2028\u2029]", "few programs treat them as line endings; replace them with \\n"
    ),
    _kind(
        "words of two scripts",
        "[A-Za-z][\u0400-\u04ff]|[\u0400-\u04ff][A-Za-z]",
        "look-alike letters of another script, perhaps from character recognition; replace them",
        required="[\u0400-\u04ff]",
    ),
    _kind("zero bytes", r"\0", "not text; find out what wrote them, and remove them"),
    _kind(
        "control characters",
        r"[\x01-\x08\x0b\x0e-\x1f\x7f]+",
        "the model learns to write them; remove them, e.g. with tr -d '\\001-\\010\\013\\016-\\037\\177'",
    ),
    _kind(
        LICENSE,
        r"\*\*\* ?(?:START|END) OF TH(?:E|IS) PROJECT GUTENBERG[^\n*]*\*\*\*|"
        r"P(?:roject|ROJECT) G(?:utenberg|UTENBERG)(?:[-™]tm|™)? (?i:licen[sc]e)|"
        r"Produced by [^\n]{0,80}(?:Distributed Proofread|Project Gutenberg)",
        "not part of the book, and the same in every book; remove it before the START line and after the END line",
        required="P",
    ),
    _kind(
        "HTML remains",
        r"</?(?:p|br|hr|div|span|a|b|i|u|em|strong|font|table|tr|td|th|ul|ol|li|h[1-6]|img|sup|sub|pre|code|html|head|"
        r"body|script|style|meta|link|blockquote|center|ref)\b[^<>\n]{0,300}>|"
        r"&(?:nbsp|amp|lt|gt|quot|apos|[mn]dash|hellip|#\d{1,6}|#[xX][0-9a-fA-F]{1,5});",
        "the model learns to write markup; unless you want that, extract the text, e.g. with html2text",
        required="[<&]",
    ),
    _kind(
        TRAILING,
        r"(?m)[ \t](?=\r?$)",
        "they cost tokens and teach nothing; remove them with sed -i 's/[ \\t]*$//'",
        required=r"[ \t]",
    ),
)


def repaired_mojibake(text: str) -> str | None:
    """The characters before their UTF-8 was read as Windows-1252; None if the text is not mojibake."""
    try:
        return bytes(_AS_1252.get(char, ord(char) if char.isascii() else 0xFF) for char in text).decode()
    except UnicodeDecodeError:
        return None
