"""Generates docs/cli.md from the commands' --help texts.

python docs/cli_reference.py > docs/cli.md
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import typer

from minigpt.cli.app import app

Row = tuple[str, str]  # an argument or option with the type of its value, and its help text


def reference() -> str:
    """The whole page, without the examples. An option that two or more commands have is described once, at the end."""
    root: Any = typer.main.get_command(app)
    rows = {name: list(_rows(name, command)) for name, command in root.commands.items()}
    owners: dict[Row, list[str]] = defaultdict(list)  # the commands that have an argument or option
    for name, its_rows in rows.items():
        for row in its_rows:
            owners[row].append(f"`{name}`")
    shared: dict[str, list[Row]] = defaultdict(list)
    for row, commands in owners.items():
        if len(commands) > 1 and row[0].startswith("-"):
            shared[", ".join(commands)].append(row)
    lines = [
        "# Command line reference",
        "",
        "Written by `python docs/cli_reference.py > docs/cli.md` from the `--help` texts, which also have examples.",
        "Options that several commands have are under [shared options](#shared-options).",
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
        own = [row for row in rows[name] if not any(row in group for group in shared.values())]
        lines += [f"## `minigpt {name}`", "", purpose, "", *_list(own)]
    lines += ["## Shared options", ""]
    for commands_with_them, group in shared.items():
        lines += [f"Of {commands_with_them}:", "", *_list(group)]
    return "\n".join(lines)


def _rows(name: str, command: Any) -> Iterator[Row]:
    context = typer.Context(command, info_name=f"minigpt {name}")
    shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    for parameter in sorted(shown, key=lambda parameter: parameter.param_type_name):  # arguments first
        names, text = parameter.get_help_record(context)  # such as "--steps <int>"
        name, _, kind = names.partition(" <")
        value = f"=<{kind}" if kind and name.startswith("-") else ""
        text = " ".join(text.split()).replace("] [x>=", "; x>=")  # bounds after a default that the help text says
        yield name + value.replace("list[str]", "str").replace(" range", ""), text


def _list(rows: Iterable[Row]) -> list[str]:
    """The rows in Markdown, and an empty line; nothing if there are none."""
    lines = ["- `{}`: {}".format(name, text.replace("<", "&lt;")) for name, text in rows]
    return [*lines, ""] if lines else []


if __name__ == "__main__":
    print(reference(), end="")
