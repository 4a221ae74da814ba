"""What a command prints without rich: results on standard output, notes and errors on standard error."""

import sys
from collections.abc import Sequence

from minigpt.tokenizer.display import one_line, visible


def note(text: object) -> None:
    """Prints a line on standard error, with control characters made visible."""
    print(one_line(text), file=sys.stderr, flush=True)


def some_of(notes: Sequence[str]) -> list[str]:
    """The first of many notes, and the number of the others."""
    return [*notes[:5], *([f"{len(notes) - 5:,} more like these"] if len(notes) > 5 else [])]


def write(text: str, end: str = "\n") -> None:
    """Prints a result: unchanged into a file or a pipe, with control characters made visible in a terminal."""
    print(visible(text, is_text=True) if sys.stdout.isatty() else text, end=end, flush=True)
