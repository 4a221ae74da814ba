"""The rich parts that every command uses: a console, a table of facts, a progress bar."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment
from rich.status import Status
from rich.table import Table
from rich.text import Text

from minigpt.tokenizer.display import one_line, visible
from minigpt.units import count, duration, size

if TYPE_CHECKING:
    from minigpt.config import GPTConfig
    from minigpt.tokenizer.tokenizer import Tokenizer

_FIRST_LINE, _LONGEST_SILENCE = 5.0, 60.0  # seconds, of progress in lines


def console(*, stderr: bool = True) -> Console:
    """A console on standard error, or on standard output.

    Everything that it prints, tables and live panels too, has its control characters made visible. Square brackets and
    colons are no markup, and numbers and paths are not highlighted.
    """
    return _Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=False)


class _Console(Console):
    """A console for texts that are not ours: rich itself passes escape sequences in a text on to the terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text, is_text=True), segment.style)

    def status(self, status: RenderableType, **options: Any) -> Status:
        return super().status(Text(status) if isinstance(status, str) else status, **options)  # not parsed as markup

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # `minigpt.cli.app` then exits with 0, rich with 1


def titled(title: str, **options: Any) -> Table:
    """An empty table without lines, under a title."""
    return Table(title=one_line(title), title_justify="left", title_style="bold", box=None, **options)


def facts(title: str, rows: Mapping[str, str]) -> RenderableType:
    """Names and values in two columns under a title."""
    table = titled(title, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(Text(one_line(name.replace("_", " "))), Text(one_line(value)))
    return table


def model_facts(config: "GPTConfig", tokenizer: "Tokenizer", weight_bytes: int) -> dict[str, str]:
    """A model's size and shape as rows; `weight_bytes` is 0 if there is no weights file."""
    vocabulary = count(tokenizer.vocab_size, "token")
    if config.vocab_size > tokenizer.vocab_size:
        vocabulary += f", padded to {config.vocab_size:,}"
    if tokenizer.suppressed_ids:
        vocabulary += f", {len(tokenizer.suppressed_ids):,} of these tokens never drawn: the training text lacks them"
    return {
        "parameters": f"{config.n_parameters:,}",
        "weights": size(weight_bytes) if weight_bytes else "none",
        "tokenizer": f"{tokenizer.name}, {vocabulary}",
        "context": count(config.n_positions, "token"),
        "shape": f"{count(config.n_layer, 'layer')}, {count(config.n_head, 'head')}, width {config.n_embd:,}",
        "dropout": f"{config.dropout:g}",
        "layer norm epsilon": f"{config.layer_norm_epsilon:g}",
        "activation function": config.activation_function,
    }


@contextmanager
def progress_bar(
    out: Console, what: str, *, in_bytes: bool = False, amounts: bool = True
) -> Iterator[Callable[..., None]]:
    """A progress bar, which is removed at the end; where lines cannot be redrawn, a line now and then.

    Yields a function that takes how much is done, the total, and what is done now. It shows both as numbers or
    `in_bytes`, and the time left; without `amounts`, the time so far.
    """
    if not out.is_interactive:
        yield _progress_lines(out, what, size if in_bytes else "{:,}".format, amounts=amounts)
        return
    amount = (DownloadColumn() if in_bytes else MofNCompleteColumn(), TimeRemainingColumn())
    columns = (TextColumn("{task.description}", markup=False), BarColumn())
    with Progress(*columns, *(amount if amounts else (TimeElapsedColumn(),)), console=out, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total, now=what: bar.update(task, completed=done, total=total, description=now)


def _progress_lines(out: Console, what: str, shown: Callable[[float], str], *, amounts: bool) -> Callable[..., None]:
    """A function that prints progress as lines: the first after some seconds, later ones further apart."""
    begin, due = time.monotonic(), _FIRST_LINE

    def report(done: float, total: float, now: str = what) -> None:
        nonlocal due
        seconds = time.monotonic() - begin
        if seconds >= due and done < total:
            due = seconds + min(_LONGEST_SILENCE, max(_FIRST_LINE, seconds / 2))
            amount = f" {shown(done)} of {shown(total)}" if amounts else ""
            left = f", {duration(seconds / done * (total - done))} left" if amounts and done else ""
            out.print(Text(f"{now}{amount}  {duration(seconds)} elapsed{left}"), soft_wrap=True)

    return report
