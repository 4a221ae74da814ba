"""rich consoles that write into memory, with colors and without."""

import io
import re

from rich.console import Console

_STYLE = re.compile(r"\x1b\[[0-9;]*m")


def color_console(width: int = 80) -> Console:
    """A terminal with 16 million colors."""
    return Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=width, highlight=False)


def plain_console(width: int = 80) -> Console:
    """A file or a pipe."""
    return Console(file=io.StringIO(), width=width, highlight=False)


def printed(out: Console, *, styles: bool = True) -> str:
    """What was printed on a console, if asked without the escape sequences of colors and styles."""
    assert isinstance(out.file, io.StringIO)
    text = out.file.getvalue()
    return text if styles else _STYLE.sub("", text)
