"""The plan of a training run as a table."""

from typing import TYPE_CHECKING

from rich.table import Table

from minigpt.tokenizer.display import one_line

if TYPE_CHECKING:
    from minigpt.jobs.plan import Plan


def plan_table(plan: "Plan") -> Table:
    """The settings of a run, each with the options that change it."""
    table = Table(
        title=one_line(plan.directory), title_justify="left", title_style="bold", box=None, header_style="dim"
    )
    table.add_column(style="dim")
    table.add_column()
    table.add_column("change it with", style="cyan")
    for row in plan.rows():
        table.add_row(*row)
    return table
