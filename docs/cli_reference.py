"""Generates docs/cli.md from the commands' --help texts.

python docs/cli_reference.py > docs/cli.md
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import typer

from minigpt.cli.app import app

Row = tuple[str, str]  # the names of an argument or option with its type, and its help text


def reference() -> str:
    """The whole page. An option that two or more commands have is described once, in the last section."""
    root: Any = typer.main.get_command(app)
    rows = {name: list(_rows(name, command)) for name, command in root.commands.items()}
    counts = Counter(row for command in rows.values() for row in command if row[0].startswith("-"))
    shared = [row for row, count in counts.items() if count > 1]
    lines = [
        "# Command line reference",
        "",
        "Generated from the commands' `--help` texts: `python docs/cli_reference.py > docs/cli.md`.",
        "",
        "Results go to standard output, everything else to standard error.",
        "",
        "| exit code | meaning |",
        "|---|---|",
        "| 0 | done |",
        "| 1 | an error that you can fix, printed in one line |",
        "| 2 | an unknown command or option |",
        "| 130, 143, 129 | stopped by Ctrl-C, SIGTERM or a closed terminal, after saving |",
        "",
    ]
    for name, command in root.commands.items():
        lines += [f"## `minigpt {name}`", "", command.help.strip(), ""]
        lines += _table(row for row in rows[name] if row not in shared)
        if also := [_long_name(row) for row in rows[name] if row in shared]:
            lines += [f"Also ([shared options](#shared-options)): {', '.join(also)}.", ""]
    lines += ["## Shared options", "", *_table(shared)]
    return "\n".join(lines)


def _rows(name: str, command: Any) -> Iterator[Row]:
    context = typer.Context(command, info_name=f"minigpt {name}")
    shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    for parameter in sorted(shown, key=lambda parameter: parameter.param_type_name):  # arguments first
        names, text = parameter.get_help_record(context)
        yield names, " ".join(text.split())


def _table(rows: Iterable[Row]) -> list[str]:
    """The rows in Markdown; nothing if there are none."""
    lines = ["| `{}` | {} |".format(*(part.replace("|", "\\|") for part in row)) for row in rows]
    return ["| argument or option | what it is |", "|---|---|", *lines, ""] if lines else []


def _long_name(row: Row) -> str:
    """The option without its type: `--device` of `--device <str>`."""
    return f"`{row[0].split(' <')[0]}`"


if __name__ == "__main__":
    print(reference(), end="")
