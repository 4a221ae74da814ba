"""Generates docs/cli.md from the commands' --help texts.

python docs/cli_reference.py > docs/cli.md
"""

from collections.abc import Iterator
from typing import Any

import typer

from minigpt.cli.app import app


def reference() -> str:
    """The whole page."""
    root: Any = typer.main.get_command(app)
    lines = [
        "# Command line reference",
        "",
        "This page is generated from the commands' `--help` texts by `python docs/cli_reference.py > docs/cli.md`.",
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
        lines += list(_command(name, command))
    return "\n".join(lines)


def _command(name: str, command: Any) -> Iterator[str]:
    context = typer.Context(command, info_name=f"minigpt {name}")
    yield from (
        f"## `minigpt {name}`",
        "",
        command.help.strip(),
        "",
        "| argument or option | what it is |",
        "|---|---|",
    )
    shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    for parameter in sorted(shown, key=lambda parameter: parameter.param_type_name):  # arguments first
        names, text = parameter.get_help_record(context)
        yield "| `{}` | {} |".format(*(part.replace("|", "\\|") for part in (names, text)))
    yield ""


if __name__ == "__main__":
    print(reference(), end="")
