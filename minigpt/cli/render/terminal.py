"""Plain text to the terminal, without rich: what a model writes to standard output, notes to standard error."""

import sys

from minigpt.tokenizer.display import LAYOUT, visible


def show(text: str) -> None:
    """Prints text as it comes; to a terminal, control characters as pictures, for they would act there."""
    if sys.stdout.isatty():
        text = visible(text, keep=LAYOUT)
    print(text, end="", flush=True)


def note(text: str) -> None:
    """Prints a line on standard error, at once."""
    print(text, file=sys.stderr, flush=True)
