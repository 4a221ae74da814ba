"""Finds issues in the characters and lines of a text, with the count and the locations of each."""

import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from minigpt.corpus_report.characters import Characters
from minigpt.corpus_report.issue_kinds import (
    DECOMPOSED,
    ISSUE_KINDS,
    MOJIBAKE,
    TRAILING,
    UNDECODABLE,
    IssueKind,
    repaired_mojibake,
)
from minigpt.corpus_report.locations import Location, TextBlock, blocks
from minigpt.data.encodings import ANOTHER_ENCODING, encoding_advice, likely_encoding
from minigpt.data.source_files import SourceFile
from minigpt.data.sources import Scan

LONG_LINE = 20_000  # characters

_MOST_LOCATIONS = 4  # of one issue
_SAMPLE = 2**10  # characters before the first byte that is not UTF-8, to recognize the encoding
_LINE_ADVICE = {
    "mixed line ends": "use one line ending so that the model learns only one; dos2unix makes all of them \\n",
    "Windows line ends": "each line has one more character to learn; dos2unix makes them \\n",
    "old Mac line ends": "most programs read the text as one long line; tr '\\r' '\\n' makes them \\n",
    "very long lines": "a page without line endings, or data between the text; check whether it belongs there",
}


@dataclass(frozen=True)
class Issue:
    """An issue of one kind: how often it occurs, its first locations, an example of the first, and what to do."""

    kind: str
    count: int
    locations: tuple[Location, ...]
    example: str
    advice: str


class _IssueCounter:
    """Counts the matches of one kind of issue and remembers the first locations."""

    def __init__(self, kind: IssueKind) -> None:
        self.kind, self.count, self.example, self.advice = kind, 0, "", kind.advice
        self.locations: list[Location] = []

    def search(self, block: TextBlock) -> None:
        """Counts the matches in a block."""
        for match in _matches(self.kind, block.text):
            self.count += 1
            if not self.locations:
                self.example = _example(self.kind.name, match)
                if self.kind.name == UNDECODABLE:
                    self.advice += f"; {_advice_on_bytes(block.file, match)}"
            if len(self.locations) < _MOST_LOCATIONS:
                self.locations.append(block.locate(match.start()))

    def result(self) -> Issue:
        return Issue(self.kind.name, self.count, tuple(self.locations), self.example, self.advice)


def find_issues(found: Scan, progress: Callable[[int], None]) -> tuple[list[Issue], Characters]:
    """Finds the issues of a text, the most serious first, and counts its characters.

    `progress` is called with the number of bytes of each block.
    """
    counters, characters = [_IssueCounter(kind) for kind in ISSUE_KINDS], Characters()
    for block in blocks(found):
        distinct = "".join(set(block.text))  # most blocks lack a kind's characters: this saves most of the searches
        for counter in counters:
            if counter.kind.required.search(distinct):
                counter.search(block)
        characters.add(block)
        progress(block.size)
    characters.finish()
    issues = [counter.result() for counter in counters if counter.count]
    return [*issues, *_line_issues(characters)], characters


def _matches(kind: IssueKind, text: str) -> Iterator[re.Match[str]]:
    """The matches of a kind's pattern that are really issues."""
    for match in kind.pattern.finditer(text):
        if kind.name == MOJIBAKE and repaired_mojibake(match[0]) is None:
            continue
        if kind.name == DECOMPOSED and unicodedata.is_normalized("NFC", match[0]):
            continue
        yield match


def _advice_on_bytes(file: SourceFile, match: re.Match[str]) -> str:
    """What to do about the first bytes that are invalid in the file's encoding."""
    if file.is_binary:
        return "correct them, or use --encoding-errors replace"
    if file.is_recoded:
        return ANOTHER_ENCODING
    sample = match.string[max(0, match.start() - _SAMPLE) :].encode(errors="surrogateescape")
    return encoding_advice(likely_encoding(sample))


def _example(kind: str, match: re.Match[str]) -> str:
    """The part of the line around a match, with invisible characters written as escapes."""
    text, (start, end) = match.string, match.span()
    reach = 40 if kind == TRAILING else 20  # characters
    before, after = text[max(0, start - reach) : start], text[end : end + 20]
    before, after = re.split(r"[\r\n]", before)[-1], re.split(r"[\r\n]", after)[0]
    shown = "".join(map(_escaped, before + text[start : min(end, start + 60)] + after))
    return f"{shown} (for {repaired_mojibake(match[0])})" if kind == MOJIBAKE else shown


def _escaped(char: str) -> str:
    if "\udc00" <= char <= "\udcff":
        return f"\\x{ord(char) - 0xDC00:02x}"
    if char.isprintable() and unicodedata.category(char) not in ("Mn", "Co"):
        return char
    return char.encode("unicode_escape").decode()


def _line_issues(characters: Characters) -> Iterator[Issue]:
    """The issues with the line endings of the whole text, and with its longest line."""
    used = {name: count for name, count in characters.line_endings.items() if count}
    names = {"LF": None, "CRLF": "Windows line ends", "CR": "old Mac line ends"}
    kind = "mixed line ends" if len(used) > 1 else names[next(iter(used), "LF")]
    if kind:
        rarest = min(used, key=used.__getitem__)
        example = ", ".join(f"{count:,} {name}" for name, count in used.items())
        yield Issue(kind, used[rarest], (characters.first_line_endings[rarest],), example, _LINE_ADVICE[kind])
    if characters.longest_line > LONG_LINE and characters.longest_line_location:
        kind, example = "very long lines", f"{characters.longest_line:,} characters"
        yield Issue(kind, 1, (characters.longest_line_location,), example, _LINE_ADVICE[kind])
