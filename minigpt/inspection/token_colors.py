"""A text with each token colored by its probability or, without colors, with its surprisal below it."""

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.text import Text

from minigpt.inspection.colors import TERMINAL_256, mode, strength, surprisal_bits, tint
from minigpt.tokenizer.display import visible

if TYPE_CHECKING:
    from minigpt.tokenizer.tokenizer import Tokenizer

_LEGEND_BITS = (0, 1, 2, 3, 5, 7, 10)


class TokenPainter:
    """Prints a text token by token.

    In a terminal with colors, the background of each token shows its probability: the stronger, the less likely.
    Elsewhere, a line of digits below each line of text gives each token's surprisal in bits, at its first character.
    """

    def __init__(self, out: Console) -> None:
        self.out = out
        self.has_colors = out.color_system is not None and not out.no_color
        self._line_is_open = False  # with colors: whether the current line has text
        self._line, self._marks = "", ""  # without colors: the line so far, and the marks below it

    def add(self, text: str, logprob: float | None) -> None:
        """Prints a token's text; `logprob` is in nats, None for a token that was not predicted."""
        if text and self.has_colors:
            self._print_colored(text, logprob)
        elif text:
            self._collect_marked(text, logprob)

    def end(self) -> None:
        if self._line_is_open:
            self.out.print(soft_wrap=True)
            self._line_is_open = False
        elif self._line:
            self._print_marked_line()

    def legend(self) -> None:
        """Prints the legend of the colors or the marks."""
        if not self.has_colors:
            self.out.print("below each token: its surprisal in bits, · under ½, + over 9", soft_wrap=True)
            return
        line = Text()
        for each in _LEGEND_BITS:
            logprob = -each * math.log(2)
            line.append(
                f" {'≤' if each == _LEGEND_BITS[-1] else ''}{percent(logprob)} ", style=background(logprob, self.out)
            )
        self.out.print(line.append("  probability; strong: unlikely"), soft_wrap=True)

    def _print_colored(self, text: str, logprob: float | None) -> None:
        style = Style() if logprob is None else background(logprob, self.out)
        for part in re.findall(r".*\n|.+", text):
            line = Text(visible(part.replace("\n", "↵").replace("\t", "⇥")), style=style)
            self._line_is_open = not part.endswith("\n")
            self.out.print(line, end="" if self._line_is_open else "\n", soft_wrap=True)

    def _collect_marked(self, text: str, logprob: float | None) -> None:
        mark = " " if logprob is None else _digit(surprisal_bits(logprob))
        for character in text:
            shown = visible({"\n": "↵", "\t": "⇥"}.get(character, character))
            if cell_len(self._line + shown) > self.out.width:
                self._print_marked_line()
            column = cell_len(self._line)
            if mark and len(self._marks) <= column:
                self._marks = self._marks.ljust(column) + mark
                mark = ""
            self._line += shown
            if character == "\n":
                self._print_marked_line()

    def _print_marked_line(self) -> None:
        for line in (self._line, self._marks.rstrip()):
            self.out.print(Text(line), soft_wrap=True)
        self._line, self._marks = "", ""


class CharacterDecoder:
    """Decodes tokens to whole characters, each with the summed log-probability of the tokens that it took."""

    def __init__(self, tokenizer: "Tokenizer", *, continues: bool = False) -> None:
        """With `continues`, the tokens come after other text."""
        self._decoder = tokenizer.decoder(continues=continues)
        self._logprob: float | None = None  # of the tokens since the last whole character

    def feed(self, token: int, logprob: float | None) -> tuple[str, float | None]:
        """Returns the characters that this token completes, often none."""
        if logprob is not None:
            self._logprob = (self._logprob or 0.0) + logprob
        text = self._decoder.feed(token)
        return (text, self._take_logprob()) if text else ("", None)

    def flush(self) -> tuple[str, float | None]:
        """Returns the rest: U+FFFD for an incomplete character."""
        return self._decoder.flush(), self._take_logprob()

    def _take_logprob(self) -> float | None:
        taken, self._logprob = self._logprob, None
        return taken


def paint_tokens(
    painter: TokenPainter, tokenizer: "Tokenizer", tokens: Sequence[int], logprobs: Sequence[float | None]
) -> None:
    decoder = CharacterDecoder(tokenizer)
    for token, logprob in zip(tokens, logprobs, strict=True):
        painter.add(*decoder.feed(token, logprob))
    painter.add(*decoder.flush())
    painter.end()


def percent(logprob: float) -> str:
    """A probability in percent with two significant digits: 100%, 23%, 2.3%, 0.04%."""
    share = 100 * math.exp(logprob)
    if share >= 9.95:
        return f"{share:.0f}%"
    return f"{share:.1f}%" if share >= 0.95 else f"{share:.2f}%" if share >= 0.01 else "<0.01%"


def background(logprob: float, out: Console) -> Style:
    """The style of a token with this log-probability, whose text is black or white, whichever is readable on it.

    A terminal with 256 colors has a scale for these: rich would take the nearest of them, which are not in order. One
    with 16, whose colors are its own, has three strengths.
    """
    strong, where = strength(logprob), mode()
    if out.color_system in ("standard", "windows"):
        return Style.parse(("none", "yellow", "black on yellow")[min(2, int(3 * strong))])
    if out.color_system == "256":
        scale = TERMINAL_256[where]
        surface = Color.from_ansi(scale[round(strong * (len(scale) - 1))])
        black, white = Color.from_ansi(16), Color.from_ansi(231)  # the first 16 colors depend on the terminal
    else:
        surface = Color.from_rgb(*tint(strong, where))
        black, white = Color.from_rgb(0, 0, 0), Color.from_rgb(255, 255, 255)
    red, green, blue = surface.get_truecolor()
    is_light = 0.299 * red + 0.587 * green + 0.114 * blue > 120
    return Style(color=black if is_light else white, bgcolor=surface)


def _digit(surprisal: float) -> str:
    return "·" if surprisal < 0.5 else str(round(surprisal)) if surprisal < 9.5 else "+"
