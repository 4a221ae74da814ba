"""The rich parts that every command uses: a console, a table of facts, a progress bar."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text


def console(*, stderr: bool = True) -> Console:
    """A console on standard error, or on standard output; it does not highlight numbers and paths."""
    return _Console(stderr=stderr, highlight=False, soft_wrap=False)


class _Console(Console):
    """A console that raises if its reader has closed the pipe: `minigpt.cli.app` then exits with 0, rich with 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def facts(title: str, rows: Mapping[str, str]) -> RenderableType:
    """Names and values in two columns under a title."""
    table = Table(
        title=title, title_justify="left", title_style="bold", show_header=False, box=None, padding=(0, 2, 0, 0)
    )
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(name.replace("_", " "), Text(value))
    return table


@contextmanager
def progress_bar(out: Console, what: str, *, in_bytes: bool = False) -> Iterator[Callable[[int, int], None]]:
    """A progress bar, in a terminal only, which is removed at the end.

    Yields a function that takes how much is done and the total, as numbers or `in_bytes`.
    """
    if not out.is_terminal:
        yield lambda *_: None
        return
    amount = DownloadColumn() if in_bytes else MofNCompleteColumn()
    columns = (TextColumn(what), BarColumn(), amount, TimeRemainingColumn())
    with Progress(*columns, console=out, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
