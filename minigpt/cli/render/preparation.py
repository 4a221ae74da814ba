"""The display of a training job before it trains: its current activity, its plan and its notices."""

from collections.abc import Callable, Generator
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console
from rich.table import Table

from minigpt.cli.render.console import facts, progress_bar, titled
from minigpt.cli.signals import raise_lost_interrupt
from minigpt.tokenizer.display import one_line

if TYPE_CHECKING:
    from minigpt.runs.events import Event
    from minigpt.runs.plan import Plan

Result = TypeVar("Result")


class PreparationDisplay(ExitStack):
    """Draws the events of a job before it trains: a spinner or a bar for each activity, lines for the rest.

    The whole plan goes to `plan_to`, or its summary to `out`.
    """

    def __init__(self, out: Console, *, plan_to: Console | None = None) -> None:
        super().__init__()
        self.out, self.plan_to = out, plan_to
        self._bar: Callable[[int, int], None] | None = None

    def follow(self, events: "Generator[Event, None, Result]") -> Result:
        """Draws the events; returns the generator's return value."""
        while True:
            try:
                event = next(events)
            except StopIteration as end:
                return end.value
            raise_lost_interrupt()
            self.show(event)

    def show(self, event: "Event") -> None:
        from minigpt.runs.events import Planned
        from minigpt.training.events import Activity, Notice

        if isinstance(event, Activity):
            self.close()
            self._bar = None
            if event.in_bytes:
                self._bar = self.enter_context(progress_bar(self.out, event.text, in_bytes=True))
            elif event.text:
                self.enter_context(self.out.status(f"{event.text} …"))
        elif isinstance(event, Planned):
            whole = self.plan_to is not None
            (self.plan_to or self.out).print(plan_table(event.plan) if whole else facts("", event.plan.summary()))
        elif isinstance(event, Notice):
            self.out.print(one_line(event.text))

    def progress(self, done: int, total: int) -> None:
        """Moves the bar of an activity that is measured in bytes."""
        if self._bar is not None:
            self._bar(done, total)


def plan_table(plan: "Plan") -> Table:
    """The settings of a run, each with the options that change it."""
    table = titled(str(plan.directory), header_style="dim")
    table.add_column(style="dim")
    table.add_column()
    table.add_column("change it with", style="cyan")
    for row in plan.rows():
        table.add_row(*row)
    return table
