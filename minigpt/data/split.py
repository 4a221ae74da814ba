"""Which part of the text is held out for validation: whole documents of many, the tail of each of few."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from minigpt.data.sources import MANY_DOCUMENTS, Piece, Scan
from minigpt.errors import ConfigError
from minigpt.tokenizer.vocabulary import END_OF_TEXT

Part = Literal["train", "validation"]

_ENOUGH_BYTES = 2_000_000  # of validation text: more takes longer to evaluate and tells no more
_ENOUGH_DOCUMENTS = 20
_FARTHEST_CUT = 2**16  # characters to go on looking for a line's end


@dataclass(frozen=True)
class Holdout:
    """How the text is divided: every `every`-th document, or where that is 0, `fraction` of each document's end."""

    fraction: float
    every: int
    lengths: tuple[int, ...]  # characters of each document, for the tails

    @classmethod
    def plan(cls, found: Scan, fraction: float | None = None) -> "Holdout":
        """The division of a text; by default 10 % of it is held out, but not more than about 2 MB.

        Raises: ConfigError for a fraction that is not from 0 to 1.
        """
        if fraction is None:
            fraction = min(0.1, _ENOUGH_BYTES / found.text_bytes)
        if not 0 <= fraction < 1:
            raise ConfigError(f"validation_fraction ({fraction}) must be at least 0 and below 1")
        n = found.n_documents
        # One document may be unlike all others, so at least two are taken, or else a bit of each.
        by_document = n > MANY_DOCUMENTS or (n >= _ENOUGH_DOCUMENTS and n * fraction >= 2)
        if fraction and by_document:
            return cls(fraction, max(2, min(round(1 / fraction), n // 2)), ())
        return cls(fraction, 0, found.document_lengths if fraction else ())

    @property
    def kind(self) -> str:
        """What is held out, in words."""
        if not self.fraction:
            return "nothing"
        return f"every {self.every}th document" if self.every else "the end of each document"

    def divide(self, pieces: Iterable[Piece]) -> Iterator[tuple[Part, str]]:
        """The text of both parts, in which "<|endoftext|>" follows every document and every end of one."""
        return self._by_tail(pieces) if self.lengths else self._by_document(pieces)

    def _by_document(self, pieces: Iterable[Piece]) -> Iterator[tuple[Part, str]]:
        index = 0
        for piece, ends in pieces:
            last_of_turn = self.every and index % self.every == self.every - 1
            yield "validation" if last_of_turn else "train", piece + END_OF_TEXT if ends else piece
            index += ends

    def _by_tail(self, pieces: Iterable[Piece]) -> Iterator[tuple[Part, str]]:
        stream = iter(pieces)
        for length in self.lengths:
            yield from self._cut_document(stream, length)

    def _cut_document(self, stream: Iterator[Piece], length: int) -> Iterator[tuple[Part, str]]:
        tail = min(round(self.fraction * length), length - 1)  # characters held out; none of a very short document
        reach = min(tail // 2, _FARTHEST_CUT)
        held, target, ends = "", length - tail, True  # target counts from where held starts
        for piece, ends in stream:
            held += piece
            if ends or len(held) >= target + reach:
                break
            if len(held) <= target:
                yield "train", held
                held, target = "", target - len(held)
        cut = target + _cut(held[target : target + reach])
        yield "train", held[:cut] + END_OF_TEXT
        rest = held[cut:]
        while not ends:
            yield "validation", rest
            rest, ends = next(stream, ("", True))
        if tail:
            yield "validation", rest + END_OF_TEXT


def _cut(window: str) -> int:
    """Where to cut in a window: after its first line, else before its first white space, else at its start."""
    line_end = window.find("\n")
    if line_end >= 0:
        return line_end + 1
    space = re.search(r"\s", window)
    return space.start() if space else 0
