"""Stopping: ends a stream of text before a stop string, or after its first line, paragraph or sentence."""

import re
from collections.abc import Sequence
from typing import Literal

Until = Literal["sentence", "paragraph", "line"]

# Group 1 is the text to keep; the rest of the match shows that it is complete.
_ENDS = {
    "line": r"\s*(\S[^\n]*)\n",
    "paragraph": r"\s*(\S.*?)[^\S\n]*\n\s*?\n",
    "sentence": r"""\s*(\S.*?[.!?…]["'”’)\]»]*)\s""",
}
_ABBREVIATION = re.compile(r"(?:\b(?:[A-Z]|Mrs?|Ms|Dr|St|Prof|Capt|Gen|Sr|Jr|vs|cf|etc|e\.g|i\.e))\.$")


class StopFilter:
    """Ends a stream of text before the first stop string, or after its first line, paragraph or sentence.

    The end that is complete first counts, independently of how the stream is divided into pieces. White space at the
    beginning ends nothing. A period after an initial or a title ("J.", "Mr.") does not end a sentence.
    """

    def __init__(self, stops: Sequence[str], until: Until | None = None) -> None:
        self.stops = tuple(stops)
        self.until = until
        self.unit = re.compile(_ENDS[until], re.DOTALL) if until else None
        self.text = ""  # everything that was fed
        self.shown = 0  # characters of it that were returned
        self.begin = 0  # the text before it is not searched for ends

    def feed(self, text: str, *, may_stop: bool = True) -> tuple[str, bool]:
        """The text that can be shown now, and whether it ends there."""
        self.text += text
        if not may_stop:
            self.begin = len(self.text)
            return self.flush(), False
        # For each end: where it is complete, and where the text ends. The first complete one counts.
        ends = [(at + len(stop), at) for stop in self.stops if (at := self.text.find(stop, self.shown)) >= 0]
        if (end := self._end()) is not None:
            ends.append(end)
        if ends:
            return self._show(min(ends)[1]), True
        held_back = max([self._gap(), *(self._partial(stop) for stop in self.stops)])
        return self._show(len(self.text) - held_back), False

    def flush(self) -> str:
        """The text that was held back, at the end of the stream."""
        return self._show(len(self.text))

    def _show(self, end: int) -> str:
        text = self.text[self.shown : end]
        self.shown = max(self.shown, end)
        return text

    def _end(self) -> tuple[int, int] | None:
        """Where the first line, paragraph or sentence is known to be complete, and where it ends; None if it is not."""
        if self.unit is None:
            return None
        at = self.begin
        while (match := self.unit.match(self.text, at)) is not None:
            if self.until != "sentence" or not _ABBREVIATION.search(match[1]):
                return match.end(), match.end(1)
            at = match.end(1)
        return None

    def _partial(self, stop: str) -> int:
        """How many characters at the end of the text may be the beginning of a stop string."""
        pending = self.text[self.shown :]
        longest = min(len(stop) - 1, len(pending))
        return next((size for size in range(longest, 0, -1) if pending.endswith(stop[:size])), 0)

    def _gap(self) -> int:
        """How many characters at the end of the text may be the gap after a paragraph."""
        pending = self.text[self.shown :]
        return len(pending) - len(pending.rstrip()) if self.until == "paragraph" else 0
