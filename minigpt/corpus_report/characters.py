"""Counts the characters of a text, their scripts, and its lines."""

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from minigpt.corpus_report.locations import LINE_END, Location, TextBlock

_CODE_POINTS = 0x110000
_LINE_ENDINGS = {"LF": re.compile(r"(?<!\r)\n"), "CRLF": re.compile(r"\r\n"), "CR": re.compile(r"\r(?!\n)")}
_COUNTED_TOGETHER = 2**20  # characters
_SCRIPTS: Mapping[str, str] = {
    "CJK": "Han",
    "FULLWIDTH": "Latin",
    "HALFWIDTH": "Katakana",
    "IDEOGRAPHIC": "Han",
    "MATHEMATICAL": "symbols",
}


@dataclass
class Characters:
    """Counts the characters of a text by code point, and its lines: `add` every block, then `finish`."""

    counts: npt.NDArray[Any] = field(default_factory=lambda: np.zeros(_CODE_POINTS, dtype=np.int64))
    lines: int = 0
    line_endings: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_LINE_ENDINGS, 0))
    first_line_endings: dict[str, Location] = field(default_factory=dict)
    longest_line: int = 0
    longest_line_location: Location | None = None

    def __post_init__(self) -> None:
        self._pending: list[str] = []
        self._pending_length = 0

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    @property
    def distinct(self) -> int:
        """How many different characters occur."""
        return int((self.counts > 0).sum())

    def add(self, block: TextBlock) -> None:
        """Counts a block of the text."""
        text = block.text
        self._pending.append(text)
        self._pending_length += len(text)
        if self._pending_length >= _COUNTED_TOGETHER:
            self.finish()
        crlf = text.count("\r\n")
        counts = {"LF": text.count("\n") - crlf, "CRLF": crlf, "CR": text.count("\r") - crlf}
        for name, count in counts.items():
            self.line_endings[name] += count
            if count and name not in self.first_line_endings and (match := _LINE_ENDINGS[name].search(text)):
                self.first_line_endings[name] = block.locate(match.start())
        lines = LINE_END.split(text)
        self.lines += len(lines) - (not lines[-1])
        longest = max(lines, key=len)
        if len(longest) > self.longest_line:
            self.longest_line, self.longest_line_location = len(longest), block.locate(text.find(longest))

    def finish(self) -> None:
        """Counts the pending characters, many together because the table of all code points is long."""
        code_points = np.frombuffer("".join(self._pending).encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        if len(code_points):
            counts = np.bincount(code_points)
            self.counts[: len(counts)] += counts
        self._pending, self._pending_length = [], 0

    def scripts(self) -> dict[str, float]:
        """The fraction of the letters in each script, the largest first.

        Python has no table of Unicode scripts, so a letter's script is the first word of its Unicode name.
        """
        letters: dict[str, int] = {}
        for code_point in np.flatnonzero(self.counts).tolist():
            if unicodedata.category(chr(code_point)).startswith("L"):
                first = unicodedata.name(chr(code_point), "UNNAMED").split()[0].split("-")[0]
                script = _SCRIPTS.get(first, first.capitalize())
                letters[script] = letters.get(script, 0) + int(self.counts[code_point])
        total = sum(letters.values())
        return {name: count / total for name, count in sorted(letters.items(), key=lambda item: -item[1])}
