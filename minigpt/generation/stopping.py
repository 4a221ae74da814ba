"""Stopping: ends a stream of text before a stop string, or after its first line, paragraph, sentence or turn."""

import re
from collections.abc import Sequence
from typing import Literal

Until = Literal["sentence", "paragraph", "line"]

# The last characters of a sentence. White space follows these (the escapes are Arabic, Hindi and Urdu), but not
# necessarily the wide ones of Chinese and Japanese.
_TERMINATORS, _CLOSING = ".!?…\u061f\u0964\u06d4", "\"'”’)]»"
_WIDE_TERMINATORS, _WIDE_CLOSING = "。！？", "」』”’）"
_ALL_TERMINATORS = _TERMINATORS + _WIDE_TERMINATORS
_ALL_CLOSING = _CLOSING + _WIDE_CLOSING

# The text ends where group 1 begins; the end of the match shows that it is complete. A match begins in no other one, so
# that a search takes linear time.
_ENDS = {
    "line": re.compile(r"(\n)"),
    "paragraph": re.compile(r"(?<=\S)([^\S\n]*\n[^\S\n]*\n)"),
    "sentence": re.compile(
        rf"(?:[{_TERMINATORS}][{re.escape(_ALL_CLOSING)}]*(?=\s)"
        rf"|[{_WIDE_TERMINATORS}][{_WIDE_CLOSING}]*(?=[^{_ALL_TERMINATORS}{_WIDE_CLOSING}]))(.)",
        re.DOTALL,
    ),
}
# The characters at the end of a text in which a match may have begun; None stands for white space.
_OPEN = {"line": "", "paragraph": None, "sentence": _ALL_TERMINATORS + _ALL_CLOSING}
# Where another turn of a transcript begins: further lines of a turn begin with a space (see `chat_logs/transcript.py`).
_NEXT_TURN = re.compile(r"\n[^ ]")
# Where a line, paragraph or sentence begins. A terminator right after another one belongs to the sentence before it.
_BEGINS = {
    "line": re.compile(r"\S"),
    "paragraph": re.compile(r"\S"),
    "sentence": re.compile(rf"[^\s{_ALL_TERMINATORS}]|(?<![{_ALL_TERMINATORS}])[{_ALL_TERMINATORS}]"),
}
_ABBREVIATION = re.compile(r"(?:\b(?:[A-Z]|Mrs?|Ms|Dr|St|Prof|Capt|Gen|Sr|Jr|vs|cf|etc|e\.g|i\.e))\.$")
_LONGEST_ABBREVIATION = len("Prof.")


class StopFilter:
    """Ends a stream of text before the first stop string, or after its first line, paragraph or sentence.

    The end that is complete first counts, independently of how the stream is divided into pieces. White space at the
    beginning ends nothing. A period after an initial or a title ("J.", "Mr.") does not end a sentence.
    With `one_turn` the text is a turn of a transcript, and it also ends before the next turn. It continues `before`,
    the end of a prompt, which may hold an abbreviation or the end of a sentence.
    """

    def __init__(
        self, stops: Sequence[str], until: Until | None = None, *, one_turn: bool = False, before: str = ""
    ) -> None:
        self.stops = tuple(stops)
        self.until, self.one_turn = until, one_turn
        self.text = before  # and everything that was fed
        self.shown = len(before)  # characters of it that were returned
        self.begin = len(before)  # where the line, paragraph or sentence begins, or the white space before it
        self.searched = len(before)  # no end of a line, paragraph or sentence begins in the text before it
        self.in_turn = len(before)  # no other turn begins in the text before it

    def feed(self, text: str, *, may_stop: bool = True) -> tuple[str, bool]:
        """The text that can be shown now, and whether it ends there."""
        length = len(self.text)
        self.text += text
        if not may_stop:
            self.begin = len(self.text)
            return self.flush(), False
        # For each end: where it is complete, and where the text ends. The first complete one counts.
        ends = [(at + len(stop), at) for stop in self.stops if (at := self.text.find(stop, self.shown)) >= 0]
        ends += [end for end in (self._end(), self._next_turn()) if end is not None]
        if ends:
            return self._show(min(ends)[1]), True
        if self.until is not None and (decided := text.rstrip(_OPEN[self.until])):
            self.searched = length + len(decided)
        held_back = [self._partial(stop) for stop in self.stops]
        held_back.append(int(self.one_turn and self.text.endswith("\n")))  # perhaps the end of the turn
        if self.until == "paragraph":  # perhaps the gap after it
            held_back.append(len(self.text) - max(self.searched, self.shown))
        return self._show(len(self.text) - max(held_back)), False

    def flush(self) -> str:
        """The text that was held back, at the end of the stream."""
        return self._show(len(self.text))

    def _show(self, end: int) -> str:
        text = self.text[self.shown : end]
        self.shown = max(self.shown, end)
        return text

    def _end(self) -> tuple[int, int] | None:
        """Where the first line, paragraph or sentence is known to be complete, and where it ends; None if it is not."""
        if self.until is None:
            return None
        while (first := _BEGINS[self.until].search(self.text, self.begin)) is not None:
            self.begin = first.start()
            end = _ENDS[self.until].search(self.text, max(self.begin, self.searched))
            if end is None:
                return None
            at = end.start(1)
            if self.until != "sentence" or not _ABBREVIATION.search(self.text, max(0, at - _LONGEST_ABBREVIATION), at):
                return end.end(), at
            self.begin = at
        self.begin = len(self.text)
        return None

    def _next_turn(self) -> tuple[int, int] | None:
        """Where it is known that another turn begins, and where this one ends; None if no other has begun."""
        if not self.one_turn:
            return None
        found = _NEXT_TURN.search(self.text, self.in_turn)
        if found is None:
            self.in_turn = max(0, len(self.text) - 1)
            return None
        return found.end(), found.start()

    def _partial(self, stop: str) -> int:
        """How many characters at the end of the text may be the beginning of a stop string."""
        pending = self.text[self.shown :]
        longest = min(len(stop) - 1, len(pending))
        return next((size for size in range(longest, 0, -1) if pending.endswith(stop[:size])), 0)
