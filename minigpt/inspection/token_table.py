"""A table with a row for every token: its probability, its surprisal, its rank, and the most likely tokens there."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.cells import set_cell_size
from rich.console import Console
from rich.style import Style
from rich.text import Text

from minigpt.inspection.colors import surprisal_bits
from minigpt.inspection.token_colors import background, percent

_LABEL_WIDTH = 14
_RIGHT_TO_LEFT = range(0x590, 0x900)  # Hebrew, Arabic and related scripts


@dataclass(frozen=True)
class TokenRow:
    """One token and its prediction. None: not known, or the token was not predicted.

    Units: logprob and entropy in nats; rank from 0, the most likely token.
    """

    number: int
    label: str
    logprob: float | None
    most_likely: Sequence[tuple[str, float]] = ()  # labels and log-probabilities
    entropy: float | None = None
    rank: int | None = None


def print_table(out: Console, rows: Iterable[TokenRow]) -> None:
    print_header(out)
    for row in rows:
        print_row(out, row)


def print_header(out: Console) -> None:
    """Prints the names of the columns; surprisal and entropy are in bits."""
    numbers = f"{'probability':>11} {'surprisal':>9} {'entropy':>7} {'rank':>6}"
    _print_line(out, Text(f"{'#':>5}  {'token':{_LABEL_WIDTH}} {numbers}  most likely"))


def print_row(out: Console, row: TokenRow) -> None:
    line = Text(f"{row.number:>5}  ")
    style = Style() if row.logprob is None else background(row.logprob, out)
    line.append(_isolated(set_cell_size(row.label, _LABEL_WIDTH)), style=style)
    line.append(f" {'' if row.logprob is None else percent(row.logprob):>11}")
    line.append(f" {'' if row.logprob is None else format(surprisal_bits(row.logprob), '.2f'):>9}")
    line.append(f" {'' if row.entropy is None else format(row.entropy / math.log(2), '.2f'):>7}")
    line.append(f" {'' if row.rank is None else row.rank + 1:>6}")
    for label, logprob in row.most_likely:
        line.append(f"  {_isolated(label)}").append(f" {percent(logprob)}", style="dim")
    _print_line(out, line)


def _print_line(out: Console, line: Text) -> None:
    """Prints a line, cut to the width of a terminal."""
    if out.is_terminal:
        out.print(line, no_wrap=True, overflow="ellipsis")
    else:
        out.print(line, soft_wrap=True)


def _isolated(label: str) -> str:
    """The label with Unicode isolates around right-to-left text, so that it does not reorder the rest of the row."""
    return f"\u2068{label}\u2069" if any(ord(character) in _RIGHT_TO_LEFT for character in label) else label
