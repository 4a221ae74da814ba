"""Notes on standard error, without rich."""

import sys


def note(text: str) -> None:
    """Prints a line on standard error."""
    print(text, file=sys.stderr, flush=True)
