"""A text coloured by the probability that a model gave each token, or, without colours, marked beneath."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.style import Style
from rich.text import Text

from minigpt.inspection.colors import bits, color, likelihood
from minigpt.tokenizer.display import token_label, visible

if TYPE_CHECKING:
    from minigpt.generation.streaming import Piece
    from minigpt.tokenizer.tokenizer import Tokenizer

_LEGEND = (0, 1, 2, 3, 5, 7, 10)  # bits
_LABEL_WIDTH = 14
_RIGHT_TO_LEFT = range(0x590, 0x900)  # Hebrew, Arabic and their kin


@dataclass(frozen=True)
class Row:
    """A token and what is known of how it was predicted; None is not known, or not predicted at all.

    Units: nats.
    """

    number: int
    label: str
    logprob: float | None
    alternatives: Sequence[tuple[str, float]] = ()
    entropy: float | None = None
    rank: int | None = None


class Painter:
    """Writes a text as its tokens come: on a coloured ground in a terminal that has colours; else a line at a time,
    with each token's surprise in bits beneath its first character."""

    def __init__(self, out: Console) -> None:
        self.out = out
        self.coloured = out.color_system is not None and not out.no_color
        self._open = False  # whether a coloured line is being written
        self._line, self._marks = "", ""  # without colours, the line so far

    def add(self, text: str, logprob: float | None) -> None:
        """Writes a token's text; its colour is that of the log-probability, None for one that was not predicted."""
        if text and self.coloured:
            self._paint(text, logprob)
        elif text:
            self._mark(text, logprob)

    def end(self) -> None:
        """Ends the line that is being written."""
        if self._open:
            self.out.print(soft_wrap=True)
            self._open = False
        elif self._line:
            self._write_line()

    def legend(self) -> None:
        """Says what the colours or the marks mean."""
        if not self.coloured:
            self.out.print("beneath each token its surprise in bits: · below ½, 1 to 9, + above", soft_wrap=True)
            return
        line = Text()
        for each in _LEGEND:
            logprob = -each * math.log(2)
            line.append(f" {'≤' if each == _LEGEND[-1] else ''}{percent(logprob)} ", style=_ground(logprob))
        self.out.print(line.append("  the probability of each token"), soft_wrap=True)

    def _paint(self, text: str, logprob: float | None) -> None:
        style = Style() if logprob is None else _ground(logprob)
        for part in re.findall(r".*\n|.+", text):
            line = Text(visible(part.replace("\n", "↵").replace("\t", "⇥")), style=style)
            self._open = not part.endswith("\n")
            self.out.print(line, end="" if self._open else "\n", soft_wrap=True)

    def _mark(self, text: str, logprob: float | None) -> None:
        mark = " " if logprob is None else _digit(bits(logprob))
        for character in text:
            shown = visible({"\n": "↵", "\t": "⇥"}.get(character, character))
            if cell_len(self._line + shown) > self.out.width:
                self._write_line()
            behind = cell_len(self._line)
            if mark and len(self._marks) <= behind:
                self._marks = self._marks.ljust(behind) + mark
                mark = ""
            self._line += shown
            if character == "\n":
                self._write_line()

    def _write_line(self) -> None:
        for line in (self._line, self._marks.rstrip()):
            self.out.print(Text(line), soft_wrap=True)
        self._line, self._marks = "", ""


class Spans:
    """Tokens in, whole characters out, each with the log-probability of all the tokens it took."""

    def __init__(self, tokenizer: "Tokenizer") -> None:
        self._decoder = tokenizer.decoder()
        self._pending: float | None = None

    def feed(self, token: int, logprob: float | None) -> tuple[str, float | None]:
        """The characters that this token completes, often none."""
        if logprob is not None:
            self._pending = (self._pending or 0.0) + logprob
        text = self._decoder.feed(token)
        return (text, self._take()) if text else ("", None)

    def flush(self) -> tuple[str, float | None]:
        """What is left: U+FFFD where a character broke off."""
        return self._decoder.flush(), self._take()

    def _take(self) -> float | None:
        taken, self._pending = self._pending, None
        return taken


class Continuation:
    """A text that a model is writing, explained as its pieces come: painted, or as a row for every token."""

    def __init__(self, out: Console, tokenizer: "Tokenizer", *, table: bool) -> None:
        self.out, self.tokenizer, self.table = out, tokenizer, table
        self.painter = Painter(out)
        self._spans = Spans(tokenizer)
        self._waiting: list[tuple[str, float | None]] = []  # what stop strings still hold back
        self._number = 0

    def begin(self, prompt: str) -> None:
        """Writes what is continued."""
        self._spans, self._waiting, self._number = Spans(self.tokenizer), [], 0
        if self.table:
            _write_header(self.out)
        else:
            self.painter.add(prompt, None)

    def add(self, piece: "Piece") -> None:
        """Writes what a piece brings."""
        if self.table:
            self._add_row(piece)
            return
        if piece.choice is not None and piece.choice.id != self.tokenizer.end_of_text:
            self._waiting.append(self._spans.feed(piece.choice.id, piece.choice.logprob))
        left = piece.text
        while left:
            text, logprob = self._waiting.pop(0) if self._waiting else (left, self._spans.flush()[1])
            if len(text) > len(left):
                self._waiting.insert(0, (text[len(left) :], logprob))
            self.painter.add(left[: len(text)], logprob)
            left = left[len(text) :]

    def write(self, prompt: str, pieces: Iterable["Piece"]) -> None:
        """Writes a whole text, and begins a new line."""
        self.begin(prompt)
        for piece in pieces:
            self.add(piece)
        if not self.table:
            self.painter.end()

    def end(self) -> None:
        """Ends the last line, and says what the colours mean."""
        if not self.table:
            self.painter.end()
            self.painter.legend()

    def _add_row(self, piece: "Piece") -> None:
        if piece.choice is None:
            return
        chosen = piece.choice
        others = [(token_label(self.tokenizer, id), logprob) for id, logprob in chosen.alternatives]
        label = token_label(self.tokenizer, chosen.id)
        _write_row(self.out, Row(self._number, label, chosen.logprob, others, chosen.entropy, chosen.rank))
        self._number += 1


def paint(painter: Painter, tokenizer: "Tokenizer", tokens: Sequence[int], logprobs: Sequence[float | None]) -> None:
    """Paints a whole text."""
    spans = Spans(tokenizer)
    for token, logprob in zip(tokens, logprobs, strict=True):
        painter.add(*spans.feed(token, logprob))
    painter.add(*spans.flush())
    painter.end()


def write_rows(out: Console, rows: Iterable[Row]) -> None:
    """Writes a table, a row at a time."""
    _write_header(out)
    for row in rows:
        _write_row(out, row)


def _write_header(out: Console) -> None:
    """The names of the columns."""
    numbers = f"{'probability':>11} {'bits':>6} {'entropy':>7} {'rank':>6}"
    _write_table_line(out, Text(f"{'#':>5}  {'token':{_LABEL_WIDTH}} {numbers}  likeliest"))


def _write_row(out: Console, row: Row) -> None:
    """Writes one token's row."""
    line = Text(f"{row.number:>5}  ")
    style = Style() if row.logprob is None else _ground(row.logprob)
    line.append(_isolated(set_cell_size(row.label, _LABEL_WIDTH)), style=style)
    line.append(f" {'' if row.logprob is None else percent(row.logprob):>11}")
    line.append(f" {'' if row.logprob is None else format(bits(row.logprob), '.2f'):>6}")
    line.append(f" {'' if row.entropy is None else format(row.entropy / math.log(2), '.2f'):>7}")
    line.append(f" {'' if row.rank is None else row.rank + 1:>6}")
    for label, logprob in row.alternatives:
        line.append(f"  {_isolated(label)}").append(f" {percent(logprob)}", style="dim")
    _write_table_line(out, line)


def _write_table_line(out: Console, line: Text) -> None:
    """Writes a line of a table; a terminal shows as much of it as is wide."""
    if out.is_terminal:
        out.print(line, no_wrap=True, overflow="ellipsis")
    else:
        out.print(line, soft_wrap=True)


def _isolated(label: str) -> str:
    """A label that turns no direction but its own: a right-to-left word stays in its cell."""
    return f"\u2068{label}\u2069" if any(ord(character) in _RIGHT_TO_LEFT for character in label) else label


def percent(logprob: float) -> str:
    """A probability in per cent, two digits of it: 100%, 23%, 2.3%, 0.04%."""
    share = 100 * math.exp(logprob)
    if share >= 9.95:
        return f"{share:.0f}%"
    return f"{share:.1f}%" if share >= 0.95 else f"{share:.2f}%" if share >= 0.01 else "<0.01%"


def _ground(logprob: float) -> Style:
    red, green, blue = color(likelihood(logprob))
    light = 0.299 * red + 0.587 * green + 0.114 * blue > 120
    return Style(color="#000000" if light else "#ffffff", bgcolor=f"#{red:02x}{green:02x}{blue:02x}")


def _digit(surprise: float) -> str:
    return "·" if surprise < 0.5 else str(round(surprise)) if surprise < 9.5 else "+"
