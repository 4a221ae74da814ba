"""The first module that the command imports: an interrupt ends the program quietly before the others are imported."""

from typing import NoReturn

from minigpt.cli.signals import exit_on_interrupt


def main() -> NoReturn:
    """Runs the `minigpt` command on the process's arguments and exits."""
    exit_on_interrupt()
    from minigpt.cli import app

    app.main()
