"""Where a stream of text ends: before a stop string, or behind a whole line, paragraph or sentence; it knows no ids."""

import re
from collections.abc import Sequence
from typing import Literal

from minigpt.errors import ConfigError

Until = Literal["sentence", "paragraph", "line"]

# Group 1 ends where the text ends; what follows it is what tells that it does.
_ENDS = {
    "line": r"\s*(\S[^\n]*)\n",
    "paragraph": r"\s*(\S.*?)[^\S\n]*\n\s*?\n",
    "sentence": r"""\s*(\S.*?[.!?…]["'”’)\]»]*)\s""",
}
_NO_END = re.compile(r"(?:\b(?:[A-Z]|Mrs?|Ms|Dr|St|Prof|Capt|Gen|Sr|Jr|vs|cf|etc|e\.g|i\.e))\.$")


class StopFilter:
    """Cuts a stream of text, wherever the pieces' borders fall, before the first of several stop strings or at the end
    of its first line, paragraph or sentence, whichever is complete first.

    Blank text at the beginning ends nothing. A full stop behind an initial or a title ("Mr.", "J.") is none.
    """

    def __init__(self, stops: Sequence[str], until: Until | None = None) -> None:
        if "" in stops:
            raise ConfigError("a stop string is empty (''); give the text to stop before")
        self.stops = tuple(stops)
        self.until = until
        self.whole = re.compile(_ENDS[until], re.DOTALL) if until else None
        self.seen = ""  # all that was fed
        self.shown = 0  # of it
        self.begin = 0  # where ends begin to count

    def feed(self, text: str, *, may_stop: bool = True) -> tuple[str, bool]:
        """The text that may be shown now, and whether it ends there."""
        self.seen += text
        if not may_stop:
            self.begin = len(self.seen)
            return self.flush(), False
        # Where each is complete, and where the text then ends: so that borders between pieces change nothing.
        found = [(at + len(stop), at) for stop in self.stops if (at := self.seen.find(stop, self.shown)) >= 0]
        if (end := self._end()) is not None:
            found.append(end)
        if found:
            return self._show(min(found)[1]), True
        held = max([self._blank(), *(self._overlap(stop) for stop in self.stops)])
        return self._show(len(self.seen) - held), False

    def flush(self) -> str:
        """What was held back, once nothing more comes."""
        return self._show(len(self.seen))

    def _show(self, end: int) -> str:
        text = self.seen[self.shown : end]
        self.shown = max(self.shown, end)
        return text

    def _end(self) -> tuple[int, int] | None:
        """Where it is known that the first line, paragraph or sentence has ended, and where that was, if it has."""
        if self.whole is None:
            return None
        at = self.begin
        while (match := self.whole.match(self.seen, at)) is not None:
            if self.until != "sentence" or not _NO_END.search(match[1]):
                return match.end(), match.end(1)
            at = match.end(1)
        return None

    def _overlap(self, stop: str) -> int:
        """How much of the end of what is not shown yet may be the beginning of a stop string."""
        held = self.seen[self.shown :]
        longest = min(len(stop) - 1, len(held))
        return next((size for size in range(longest, 0, -1) if held.endswith(stop[:size])), 0)

    def _blank(self) -> int:
        """How much of that may be the gap behind a paragraph."""
        held = self.seen[self.shown :]
        return len(held) - len(held.rstrip()) if self.until == "paragraph" else 0
