"""The `minigpt` command: its sub-commands, and the one place where errors become a line and an exit code."""

import errno
import gc
import importlib
import io
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn, TextIO, cast

import typer
from typer.core import TyperGroup

from minigpt import __version__
from minigpt.errors import MinigptError

_COMMANDS = {  # by the module of minigpt.cli and the function there, in the order that --help lists them in
    "train": "train.train",
    "generate": "generate.generate",
    "play": "play.play",
    "load-gpt2": "load_gpt2.load_gpt2",
    "export": "export.export",
    "corpus": "corpus.corpus",
    "evaluate": "evaluate.evaluate",
    "inspect": "inspection.inspect",
    "report": "report.report",
    "info": "info.info",
}
_MARKUP: Final = "markdown"
_UNWRITTEN = {errno.ENOSPC, errno.EDQUOT, errno.EIO}  # what writing to a full disk or a closed terminal fails of


class _Made(Mapping[str, Any]):
    """The sub-commands, each imported and made when it is asked for: a start costs one of them, not all."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            module, _, function = _COMMANDS[name].partition(".")
            alone = typer.Typer(add_completion=False, rich_markup_mode=_MARKUP)
            alone.command(name)(getattr(importlib.import_module(f"minigpt.cli.{module}"), function))
            self._made[name] = typer.main.get_command(alone)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_COMMANDS)

    def __len__(self) -> int:
        return len(_COMMANDS)


class _Commands(TyperGroup):
    """The command group whose invocation turns errors into exit codes: 1 for what the user can mend, 130 for Ctrl-C."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = cast(Any, _Made())

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except MinigptError as error:
            print(f"minigpt: {error}", file=sys.stderr)
            raise typer.Exit(1) from error
        except KeyboardInterrupt as interrupt:
            print("minigpt: stopped", file=sys.stderr)
            raise typer.Exit(130) from interrupt
        except BrokenPipeError as closed:
            _write_nowhere()
            raise typer.Exit(0) from closed


def _nowhere() -> TextIO:
    return Path(os.devnull).open("w", encoding="utf-8")


def _write_nowhere() -> None:
    """Lets what is written from here on vanish: the reader has gone (`| head`), and nothing is left to say it to."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Heedless:
    """A stream that goes on where it cannot be written to: what is said on the way ends no run, though the disk that
    it goes to is full, the terminal is closed, or who has read it is gone."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=_MARKUP,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
    gc.set_threshold(100_000)  # 700 by default: importing torch would be walked through again and again, for nothing
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name) or _nowhere()  # None where it is closed
        setattr(sys, name, stream)
        if isinstance(stream, io.TextIOWrapper):  # Windows consoles and old locales are not UTF-8 by themselves
            stream.reconfigure(encoding="utf-8", errors="replace")
    sys.stderr = cast(TextIO, _Heedless(sys.stderr))
    code: Any = 0
    try:
        app()
    except SystemExit as end:
        code = end.code
    except KeyboardInterrupt:  # one more, while the first is answered
        code = 130
    except OSError as error:
        if error.filename is not None or error.errno not in _UNWRITTEN:
            raise
        code = _say_unwritten(error)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # what is left to do is to end
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # a reader that has gone is no error of ours
        _write_nowhere()
    except OSError as error:
        code = code or _say_unwritten(error)
    sys.exit(code)


def _say_unwritten(error: OSError) -> int:
    print(f"minigpt: standard output could not be written ({(error.strerror or str(error)).lower()})", file=sys.stderr)
    _write_nowhere()
    return 1
