"""The split of a text into training and validation parts: whole documents, or the end of each document."""

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from minigpt.data.sources import MANY_DOCUMENTS, Piece, Scan
from minigpt.errors import ConfigError
from minigpt.seeds import mix_seed
from minigpt.tokenizer.vocabulary import END_OF_TEXT

Part = Literal["train", "validation"]

DEFAULT_FRACTION = 0.1  # of a text, for validation
ENOUGH_BYTES = 2_000_000  # of validation text: more takes longer to evaluate and is not more informative
_ENOUGH_DOCUMENTS = 20
_ENOUGH_CONVERSATIONS = 10
_MAX_SEARCH = 2**16  # characters in which to look for a line's end


@dataclass(frozen=True)
class ValidationSplit:
    """How a text is split: the validation part is one random document of every `every` consecutive ones, or, if `every`
    is 0, the last `fraction` of each document.

    The draw depends only on `every` and the number of the document. It is random because texts have periods: every
    tenth document may be in the same language.
    """

    fraction: float
    every: int
    lengths: tuple[int, ...]  # characters of each document; empty unless ends are held out
    between_turns: bool = False  # whether ends begin with a turn of a conversation, if possible

    @classmethod
    def plan(cls, scanned: Scan, fraction: float | None = None) -> "ValidationSplit":
        """Chooses the split of a text; by default 10 % of it, but at most about 2 MB, is for validation.

        Raises: ConfigError for a fraction below 0, or 1 and above.
        """
        if fraction is None:
            fraction = min(DEFAULT_FRACTION, ENOUGH_BYTES / scanned.text_bytes)
        if not 0 <= fraction < 1:
            raise ConfigError(f"validation_fraction ({fraction}) must be at least 0 and below 1")
        n = scanned.n_documents
        # One document may differ from all others, so at least two are held out, or else the end of each.
        # Conversations of one log are more alike, and mostly too short to be cut.
        by_document = n > MANY_DOCUMENTS or (n >= _ENOUGH_DOCUMENTS and n * fraction >= 2)
        by_document = by_document or (scanned.has_speakers and n >= _ENOUGH_CONVERSATIONS)
        if fraction and by_document:
            return cls(fraction, max(2, min(round(1 / fraction), n // 2)), ())
        lengths = scanned.document_lengths if fraction else ()
        return cls(fraction, 0, lengths, between_turns=scanned.has_speakers)

    @property
    def key(self) -> tuple[object, ...]:
        """The parts of a cache key that stand for the split."""
        return self.fraction, self.every

    @property
    def description(self) -> str:
        """What the validation part is, as printed: "one document of every 10, at random"."""
        if not self.fraction:
            return "nothing"
        return f"one document of every {self.every:,}, at random" if self.every else "the end of each document"

    def apply(self, pieces: Iterable[Piece]) -> Iterator[tuple[Part, str]]:
        """The text of both parts piece by piece, with "<|endoftext|>" after every document and every part of one."""
        return self._by_end(pieces) if self.lengths else self._by_document(pieces)

    def _by_document(self, pieces: Iterable[Piece]) -> Iterator[tuple[Part, str]]:
        number = drawn = 0
        for piece, ends in pieces:
            if self.every and number % self.every == 0:
                drawn = number + mix_seed(self.every, number) % self.every
            is_held_out = self.every and number == drawn
            yield "validation" if is_held_out else "train", piece + END_OF_TEXT if ends else piece
            number += ends

    def _by_end(self, pieces: Iterable[Piece]) -> Iterator[tuple[Part, str]]:
        stream = iter(pieces)
        for length in self.lengths:
            yield from self._cut_document(stream, length)
        deque(stream, maxlen=0)  # to its end, where a changed text is an error

    def _cut_document(self, stream: Iterator[Piece], length: int) -> Iterator[tuple[Part, str]]:
        tail = self._tail(length)
        # A conversation ends with a newline, after which nothing would be held out.
        reach = min(max(0, tail - 1) if self.between_turns else tail // 2, _MAX_SEARCH)
        buffer, target, ends = "", length - tail, True  # target is relative to the start of buffer
        for piece, ends in stream:
            buffer += piece
            if ends or len(buffer) >= target + reach:
                break
            if len(buffer) <= target:
                yield "train", buffer
                buffer, target = "", target - len(buffer)
        cut = target + _cut(buffer[target : target + reach], between_turns=self.between_turns)
        yield "train", buffer[:cut] + END_OF_TEXT
        rest = buffer[cut:]
        while not ends:
            yield "validation", rest
            rest, ends = next(stream, ("", True))
        if tail:
            yield "validation", rest + END_OF_TEXT

    def _tail(self, length: int) -> int:
        """The characters of a document that are for validation, at most; 0 of a very short document."""
        return min(round(self.fraction * length), length - 1)


def _cut(window: str, *, between_turns: bool) -> int:
    """Where to cut a window: before its first turn, else after its first line, else before its first white space, else
    at its start."""
    if between_turns and (turn_end := re.search(r"\n(?=[^ ])", window)):
        return turn_end.end()
    line_end = window.find("\n")
    if line_end >= 0:
        return line_end + 1
    space = re.search(r"\s", window)
    return space.start() if space else 0
