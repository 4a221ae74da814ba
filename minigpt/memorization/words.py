"""Splits a text into the units that copies consist of: words, and the characters of scripts without spaces.

Words are separated by white space; punctuation and case belong to them. Han, Hiragana, Katakana, Thai, Lao, Khmer and
Burmese are written without spaces, so each of their characters is a unit. A copied run of 20 characters there is about
as remarkable as one of 8 words.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from minigpt.units import count

LONG_RUN = 8  # words: shorter runs are mostly common phrases
_CHARACTERS_PER_WORD = 2.5

_SPACELESS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u19e0-\u19ff\ua9e0-\ua9ff\uaa60-\uaa7f"  # Thai, Lao, Burmese, Khmer
    "\u3001-\u30ff\u31f0-\u31ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Chinese, Japanese
    "\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff9f"  # their full-width punctuation, half-width Katakana
)
UNIT = re.compile(rf"[{_SPACELESS}]|[^\s{_SPACELESS}]+")
_ANY_SPACELESS = re.compile(f"[{_SPACELESS}]")
_LETTER_OR_DIGIT = re.compile(r"\w")


def has_spaceless(text: str) -> bool:
    """Whether a text has a character of a script without spaces."""
    return not text.isascii() and _ANY_SPACELESS.search(text) is not None


def split(text: str) -> list[str]:
    """The units of a text; `str.split` is faster than the pattern and enough for most scripts."""
    return UNIT.findall(text) if has_spaceless(text) else text.split()


@dataclass(frozen=True)
class Extent:
    """The size of a stretch of text: its words, and its characters of scripts without spaces."""

    words: int = 0
    characters: int = 0

    @property
    def length(self) -> float:
        """The number of words; 2.5 characters of scripts without spaces count as one."""
        return self.words + self.characters / _CHARACTERS_PER_WORD

    def __add__(self, other: "Extent") -> "Extent":
        return Extent(self.words + other.words, self.characters + other.characters)

    def __sub__(self, other: "Extent") -> "Extent":
        return Extent(self.words - other.words, self.characters - other.characters)

    def __str__(self) -> str:
        """The size in English: "8 words", "20 characters", or both."""
        if not self.characters:
            return count(self.words, "word")
        characters = count(self.characters, "character")
        return f"{count(self.words, 'word')} and {characters}" if self.words else characters

    def minimum(self, words: int) -> str:
        """How long a run must be at least to have the length of so many words, in the units that occur here."""
        characters = count(math.ceil(words * _CHARACTERS_PER_WORD), "character")
        if not self.characters:
            return count(words, "word")
        return f"{count(words, 'word')} or {characters}" if self.words else characters


def extents(text: str, units: Sequence[re.Match[str]]) -> list[Extent]:
    """The size of each unit of a text: a word, or characters.

    Punctuation that all scripts share, such as “ ” and …, counts as characters where it touches one that does.
    """
    return [_extent(text, unit) for unit in units]


def _extent(text: str, unit: re.Match[str]) -> Extent:
    start, end = unit.span()
    touches = has_spaceless(text[max(0, start - 1) : start] + text[end : end + 1])
    if has_spaceless(unit[0]) or (touches and not _LETTER_OR_DIGIT.search(unit[0])):
        return Extent(characters=end - start)
    return Extent(words=1)
