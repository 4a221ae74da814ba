"""Plain output without rich: generated text on standard output, notes on standard error."""

import sys

from minigpt.tokenizer.display import LAYOUT, visible


def write(text: str) -> None:
    """Prints text without a newline; in a terminal, control characters become pictures, so that they do not act."""
    if sys.stdout.isatty():
        text = visible(text, keep=LAYOUT)
    print(text, end="", flush=True)


def note(text: str) -> None:
    """Prints a line on standard error."""
    print(text, file=sys.stderr, flush=True)
