"""What a command prints without rich: results on standard output, notes and errors on standard error."""

import contextlib
import sys
from collections.abc import Callable, Sequence
from typing import TextIO, cast

from minigpt.edges import provided
from minigpt.errors import MinigptError
from minigpt.tokenizer.display import one_line, visible


def note(text: object, *, indent: int = 0, is_command: bool = False) -> None:
    """Prints a line on standard error, with control characters made visible.

    In a terminal it is broken at words, with an indentation below it, unless it `is_command`, which may be copied.
    """
    print(one_line(text) if is_command else _wrapper(sys.stderr, indent)(one_line(text)), file=sys.stderr, flush=True)


def some_of(notes: Sequence[str]) -> list[str]:
    """The first of many notes, and the number of the others."""
    return [*notes[:5], *([f"{len(notes) - 5:,} more like these"] if len(notes) > 5 else [])]


def write(text: str, end: str = "\n") -> None:
    """Prints a result: unchanged into a file or a pipe, with control characters made visible in a terminal."""
    print(visible(text, is_text=True) if sys.stdout.isatty() else text, end=end, flush=True)


def prose() -> Callable[[str], None]:
    """A function that prints a text in pieces, like `write` without line ends; a terminal gets it broken at words."""
    wrap, in_terminal = _wrapper(sys.stdout), sys.stdout.isatty()
    return lambda text: print(wrap(visible(text, is_text=True)) if in_terminal else text, end="", flush=True)


def _wrapper(stream: TextIO, indent: int = 0) -> Callable[[str], str]:
    """What breaks a text at words; nothing does so if the stream is no terminal, or if the edges cannot be loaded."""
    with contextlib.suppress(MinigptError):  # the error that is to be printed
        if stream.isatty() and (wrappers := provided("wrap")):
            return cast(Callable[[str], str], wrappers[0](stream, indent))
    return str
