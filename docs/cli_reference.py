"""Generates docs/cli.md from the commands' --help texts.

python docs/cli_reference.py > docs/cli.md
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import typer

from minigpt.cli.app import app

Row = tuple[str, str]  # an argument or option with the type of its value, and its help text


def reference() -> str:
    """The whole page, without the examples. An option that two or more commands have is described once, at the end."""
    root: Any = typer.main.get_command(app)
    rows = {name: list(_rows(name, command)) for name, command in root.commands.items()}
    commands: dict[Row, list[str]] = defaultdict(list)  # those that have an argument or option
    for name, its_rows in rows.items():
        for row in its_rows:
            commands[row].append(f"`{name}`")
    shared = {row: names for row, names in commands.items() if len(names) > 1 and row[0].startswith("-")}
    lines = [
        "# Command line reference",
        "",
        "Written by `python docs/cli_reference.py > docs/cli.md` from the `--help` texts, which also have examples. Options",
        "that several commands have are under [shared options](#shared-options).",
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
        purpose = command.help.partition("Examples:")[0].strip()
        own = [row for row in rows[name] if row not in shared]
        lines += [f"## `minigpt {name}`", "", purpose, "", *_table(own, "argument or option", "what it is")]
    columns = ("option", "what it is", "commands")
    lines += ["## Shared options", "", *_table([(*row, ", ".join(shared[row])) for row in shared], *columns)]
    return "\n".join(lines)


def _rows(name: str, command: Any) -> Iterator[Row]:
    context = typer.Context(command, info_name=f"minigpt {name}")
    shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    for parameter in sorted(shown, key=lambda parameter: parameter.param_type_name):  # arguments first
        names, text = parameter.get_help_record(context)  # such as "--steps <int>"
        name, _, kind = names.partition(" <")
        value = f"=<{kind}" if kind and name.startswith("-") else ""
        yield name + value.replace("list[str]", "str").replace(" range", ""), " ".join(text.split())


def _table(rows: Sequence[Sequence[str]], *columns: str) -> list[str]:
    """The rows in Markdown, the first column as code; nothing if there are none."""
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    lines = [f"| `{first}` | {' | '.join(rest)} |" for first, *rest in escaped]
    return [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|", *lines, ""] if lines else []


if __name__ == "__main__":
    print(reference(), end="")
