"""What is wrong with the characters and lines of a text, how often, and where; its files stay as they are."""

import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from minigpt.corpus_report.characters import Characters
from minigpt.corpus_report.issue_kinds import DECOMPOSED, MOJIBAKE, SYMPTOMS, TRAILING, Symptom, undone
from minigpt.corpus_report.locations import Block, Place, blocks
from minigpt.data.sources import Scan

LONG_LINE = 20_000  # characters

_MOST_PLACES = 4  # of one trouble that are told
_LINES = {
    "mixed line ends": "one end of line is one habit to learn; make all of them \\n, e.g. with dos2unix",
    "Windows line ends": "each costs a character more; dos2unix makes them \\n",
    "old Mac line ends": "most programs see one long line; tr '\\r' '\\n' makes them \\n",
    "very long lines": "a page without a line's end, or data among the text; look whether it belongs there",
}


@dataclass(frozen=True)
class Trouble:
    """One kind of trouble: how often it occurs, the first of its places with an example, and what to do about it."""

    kind: str
    count: int
    places: tuple[Place, ...]
    example: str
    advice: str


class _Ledger:
    """Counts the matches of one symptom, and keeps the first places."""

    def __init__(self, symptom: Symptom) -> None:
        self.symptom, self.count, self.example = symptom, 0, ""
        self.places: list[Place] = []

    def search(self, block: Block) -> None:
        """Notes what a block has of it."""
        for match in _matches(self.symptom, block.text):
            self.count += 1
            if not self.places:
                self.example = _example(self.symptom.kind, match)
            if len(self.places) < _MOST_PLACES:
                self.places.append(block.place(match.start()))


def find_troubles(found: Scan, progress: Callable[[int], None]) -> tuple[list[Trouble], Characters]:
    """What is wrong with the characters of a text, the gravest first, and what they are; `progress` hears of bytes."""
    ledgers, characters = [_Ledger(symptom) for symptom in SYMPTOMS], Characters()
    for block in blocks(found):
        different = "".join(set(block.text))  # to look for what cannot be there takes most of the time
        for ledger in ledgers:
            if ledger.symptom.telltale.search(different):
                ledger.search(block)
        characters.add(block)
        progress(block.size)
    characters.finish()
    troubles = [
        Trouble(ledger.symptom.kind, ledger.count, tuple(ledger.places), ledger.example, ledger.symptom.advice)
        for ledger in ledgers
        if ledger.count
    ]
    return [*troubles, *_line_troubles(characters)], characters


def _matches(symptom: Symptom, text: str) -> Iterator[re.Match[str]]:
    """The places where a text has the symptom, and not only looks so."""
    for match in symptom.pattern.finditer(text):
        if symptom.kind == MOJIBAKE and undone(match[0]) is None:
            continue
        if symptom.kind == DECOMPOSED and unicodedata.is_normalized("NFC", match[0]):
            continue
        yield match


def _example(kind: str, match: re.Match[str]) -> str:
    """The part of the line around a match, with what cannot be seen written out."""
    text, (start, end) = match.string, match.span()
    room = 40 if kind == TRAILING else 20
    before, after = text[max(0, start - room) : start], text[end : end + 20]
    before, after = re.split(r"[\r\n]", before)[-1], re.split(r"[\r\n]", after)[0]
    shown = "".join(map(_visible, before + text[start : min(end, start + 60)] + after))
    return f"{shown} (for {undone(match[0])})" if kind == MOJIBAKE else shown


def _visible(char: str) -> str:
    if "\udc80" <= char <= "\udcff":
        return f"\\x{ord(char) - 0xDC00:02x}"
    if char.isprintable() and unicodedata.category(char) not in ("Mn", "Co"):
        return char
    return char.encode("unicode_escape").decode()


def _line_troubles(characters: Characters) -> Iterator[Trouble]:
    """What the whole text's ends of line are, and how long the longest line is."""
    used = {name: count for name, count in characters.line_ends.items() if count}
    names = {"LF": None, "CRLF": "Windows line ends", "CR": "old Mac line ends"}
    kind = "mixed line ends" if len(used) > 1 else names[next(iter(used), "LF")]
    if kind:
        fewest = min(used, key=used.__getitem__)
        example = ", ".join(f"{count:,} {name}" for name, count in used.items())
        yield Trouble(kind, used[fewest], (characters.first_line_ends[fewest],), example, _LINES[kind])
    if characters.longest_line > LONG_LINE and characters.longest_place:
        kind, example = "very long lines", f"{characters.longest_line:,} characters"
        yield Trouble(kind, 1, (characters.longest_place,), example, _LINES[kind])
