"""The `minigpt` command: its sub-commands, and the one place where errors become a line and an exit code."""

import io
import os
import sys
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from minigpt import __version__
from minigpt.cli import corpus, evaluate, export, generate, info, inspection, load_gpt2, play, report, train
from minigpt.errors import MinigptError


class _Commands(TyperGroup):
    """The command group whose invocation turns errors into exit codes: 1 for what the user can mend, 130 for Ctrl-C."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except MinigptError as error:
            print(f"minigpt: {error}", file=sys.stderr)
            raise typer.Exit(1) from error
        except KeyboardInterrupt as interrupt:
            print("minigpt: stopped", file=sys.stderr)
            raise typer.Exit(130) from interrupt
        except BrokenPipeError as closed:  # the reader has gone (`| head`): nothing is left to say it to
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from closed


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(train.train)
app.command()(generate.generate)
app.command()(play.play)
app.command("load-gpt2")(load_gpt2.load_gpt2)
app.command()(export.export)
app.command()(corpus.corpus)
app.command()(evaluate.evaluate)
app.command()(inspection.inspect)
app.command()(report.report)
app.command()(info.info)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"minigpt {__version__}")
        raise typer.Exit


@app.callback()
def _minigpt(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> None:
    """Train a GPT on your own text, import GPT-2, generate.

    Start with `minigpt train corpus.txt`, then `minigpt generate "Once upon a time"`.
    """


def main() -> NoReturn:
    """Runs the command line on the process's arguments and exits."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # Windows consoles and old locales are not UTF-8 by themselves
            stream.reconfigure(encoding="utf-8", errors="replace")
    app()
    sys.exit(0)
