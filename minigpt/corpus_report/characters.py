"""What a text consists of: its characters, their scripts, and its lines."""

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from minigpt.corpus_report.locations import LINE_END, Block, Place

_POINTS = 0x110000
_LINE_ENDS = {"LF": re.compile(r"(?<!\r)\n"), "CRLF": re.compile(r"\r\n"), "CR": re.compile(r"\r(?!\n)")}
_AT_ONCE = 2**20  # characters counted at once
_SCRIPTS: Mapping[str, str] = {
    "CJK": "Han",
    "FULLWIDTH": "Latin",
    "HALFWIDTH": "Katakana",
    "IDEOGRAPHIC": "Han",
    "MATHEMATICAL": "symbols",
}


@dataclass
class Characters:
    """A text's characters by code point, and its lines; `add` takes in one block after the other, then `finish`."""

    counts: npt.NDArray[Any] = field(default_factory=lambda: np.zeros(_POINTS, dtype=np.int64))
    lines: int = 0
    line_ends: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_LINE_ENDS, 0))
    first_line_ends: dict[str, Place] = field(default_factory=dict)
    longest_line: int = 0
    longest_place: Place | None = None

    def __post_init__(self) -> None:
        self._waiting: list[str] = []
        self._length = 0

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    def add(self, block: Block) -> None:
        """Takes in a block of the text."""
        text = block.text
        self._waiting.append(text)
        self._length += len(text)
        if self._length >= _AT_ONCE:
            self.finish()
        windows = text.count("\r\n")
        counts = {"LF": text.count("\n") - windows, "CRLF": windows, "CR": text.count("\r") - windows}
        for kind, count in counts.items():
            self.line_ends[kind] += count
            if count and kind not in self.first_line_ends and (match := _LINE_ENDS[kind].search(text)):
                self.first_line_ends[kind] = block.place(match.start())
        lines = LINE_END.split(text)
        self.lines += len(lines) - (not lines[-1])
        longest = max(lines, key=len)
        if len(longest) > self.longest_line:
            self.longest_line, self.longest_place = len(longest), block.place(text.find(longest))

    def finish(self) -> None:
        """Counts the characters that wait for it: many at once, for the table of all characters is long."""
        points = np.frombuffer("".join(self._waiting).encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        if len(points):
            seen = np.bincount(points)
            self.counts[: len(seen)] += seen
        self._waiting, self._length = [], 0

    def scripts(self) -> dict[str, float]:
        """The share of each script among the letters, the largest first.

        A letter's script is the first word of its name in Unicode, whose own table of scripts is not in Python.
        """
        letters: dict[str, int] = {}
        for point in np.flatnonzero(self.counts).tolist():
            if unicodedata.category(chr(point)).startswith("L"):
                first = unicodedata.name(chr(point), "UNNAMED").split()[0].split("-")[0]
                script = _SCRIPTS.get(first, first.capitalize())
                letters[script] = letters.get(script, 0) + int(self.counts[point])
        total = sum(letters.values())
        return {name: count / total for name, count in sorted(letters.items(), key=lambda item: -item[1])}
