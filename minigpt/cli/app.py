"""The `minigpt` command: its subcommands, and the one place that turns errors into a line and an exit code."""

import errno
import gc
import io
import os
import re
import sys
import warnings
from collections import UserDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn, TextIO, cast

import typer
from typer.core import TyperGroup

from minigpt import __version__, edges
from minigpt.cli.render.terminal import note, write
from minigpt.cli.signals import ignore_interrupts, raise_on_interrupt, was_interrupted
from minigpt.errors import ConfigError, MinigptError, reason_of
from minigpt.tokenizer.display import one_line

_SPINE = {  # the commands that need no edge: their functions by name
    "train": "minigpt.cli.train:train",
    "generate": "minigpt.cli.generate:generate",
    "load-gpt2": "minigpt.cli.load_gpt2:load_gpt2",
    "evaluate": "minigpt.cli.evaluate:evaluate",
    "info": "minigpt.cli.info:info",
    "list": "minigpt.cli.list_models:list_models",
}
# In the order of --help; a command that is not named here comes last.
_ORDER = (
    "train", "generate", "play", "chat", "serve", "load-gpt2", "merge", "export", "corpus", "evaluate", "inspect",
    "report", "info", "list", "rm",
)  # fmt: skip
_MARKUP: Final = "markdown"
_THREADS = "OMP_NUM_THREADS"  # environment variable of OpenMP; it may list a number for each level of parallel regions
_UsageError: Any = typer.BadParameter.__base__  # the error for an unknown option, a missing argument, …
_NO_MEMORY = re.compile("failed to map segment|cannot allocate memory", re.IGNORECASE)  # of the dynamic linker
_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EIO}  # the disk is full or the terminal closed
# Windows reports EINVAL, too: https://github.com/python/cpython/issues/79935
_CLOSED_PIPE = {errno.EPIPE} | ({errno.EINVAL} if os.name == "nt" else set())


class _LazyCommands(UserDict[str, Any]):
    """The subcommands, each imported when it is first used, so that starting one does not import the others."""

    def __getitem__(self, name: str) -> Any:
        if isinstance(command := self.data[name], str):
            single = typer.Typer(add_completion=False, rich_markup_mode=_MARKUP)
            single.command(name)(edges.load(command))
            self.data[name] = typer.main.get_command(single)
        return self.data[name]


class _Commands(TyperGroup):
    """The command group, which turns errors into exit codes: 1 for an error the user can fix, 130 for Ctrl-C."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = cast(Any, _LazyCommands(_commands()))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        for edge in edges.EDGES:
            if args[0] in edge.commands and args[0] not in self.commands:
                raise ConfigError(f"{args[0]} is not installed: the package {edge.package} is missing")
        return super().resolve_command(ctx, args)

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        for option in self.params:
            _default_to_false(option)
        with _visible_usage_errors():
            return super().make_context(*arguments, **options)

    def get_help_option(self, ctx: Any) -> Any:
        return _default_to_false(super().get_help_option(ctx))

    def invoke(self, ctx: Any) -> Any:
        try:
            try:
                raise_on_interrupt()
                _check_thread_count()
                with _visible_usage_errors():
                    return super().invoke(ctx)
            finally:
                ignore_interrupts()
        except KeyboardInterrupt as interrupt:
            raise _stopped() from interrupt
        except MinigptError as error:
            note(f"minigpt: {error}")
            raise typer.Exit(1) from error
        except typer.Exit:
            raise
        except Exception as error:
            if _is_closed_pipe(error):
                _discard_stdout()
                raise typer.Exit(0) from error
            if was_interrupted():  # an import that Ctrl-C cut short fails in many ways
                raise _stopped() from error
            if _lacks_memory(error):
                note("minigpt: there is too little memory; raise the limit of this process (ulimit -v), or free some")
                raise typer.Exit(1) from error
            raise


def _commands() -> dict[str, str]:
    """The functions of all commands by name, in the order of --help."""
    found = edges.commands() | _SPINE
    return {name: found[name] for name in sorted(found, key=lambda name: (*_place(name), name))}


def _place(name: str) -> tuple[bool, int]:
    return (False, _ORDER.index(name)) if name in _ORDER else (True, 0)


def _stopped() -> typer.Exit:
    note("minigpt: stopped")
    return typer.Exit(130)


def _default_to_false(option: Any) -> Any:
    """Gives a flag whose default is None the default False: to read None, typer imports pydantic, which takes 0.1 s."""
    if getattr(option, "is_flag", False) and option.default is None:
        option.default = False
    return option


@contextmanager
def _visible_usage_errors() -> Iterator[None]:
    """Makes control characters visible in the errors that typer prints: a glob may give names of files as options."""
    try:
        yield
    except _UsageError as error:
        error.message = one_line(error.message)
        raise


def _null_device(mode: str) -> TextIO:
    return cast(TextIO, Path(os.devnull).open(mode, encoding="utf-8"))


def _lacks_memory(error: BaseException | None) -> bool:
    """Whether an error, or one that it followed, is for lack of memory, also of memory to load a package."""
    while error is not None:
        if isinstance(error, MemoryError) or (isinstance(error, ImportError) and _NO_MEMORY.search(str(error))):
            return True
        error = error.__cause__ or error.__context__
    return False


def _is_closed_pipe(error: Exception) -> bool:
    """Whether the reader of standard output has closed the pipe, as `| head` does."""
    if isinstance(error, BrokenPipeError):
        return True
    return isinstance(error, OSError) and error.filename is None and error.errno in _CLOSED_PIPE


def _discard_stdout() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _ForgivingStream:
    """A stream that ignores write errors: a full disk or a closed terminal must not end a run over its progress."""

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
        write(f"minigpt {__version__}")
        raise typer.Exit


@app.callback()
def _minigpt(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> None:
    """Train a GPT-2 on your own text, import OpenAI's GPT-2, generate text.

    Start with `minigpt train corpus.txt`, then `minigpt generate "Once upon a time"`.
    """


def _check_thread_count() -> None:
    """Raises a ConfigError for a number of threads that OpenMP would replace by its default."""
    counts = os.environ.get(_THREADS, "1")
    if not all(count.strip().isdecimal() and int(count) > 0 for count in counts.split(",")):
        raise ConfigError(f"{_THREADS} is {counts!r}; it must be a whole number from 1 on")


def main() -> NoReturn:
    gc.set_threshold(100_000)  # with the default of 700, the collector slows down importing torch
    for name, mode in {"stdin": "r", "stdout": "w", "stderr": "w"}.items():
        stream = getattr(sys, name) or _null_device(mode)  # None if it is closed
        setattr(sys, name, stream)
        if isinstance(stream, io.TextIOWrapper):  # Windows consoles and old locales have other encodings
            # What is typed is checked where it is read.
            stream.reconfigure(encoding="utf-8", errors="surrogateescape" if name == "stdin" else "replace")
            if name == "stdout":
                stream.reconfigure(newline="\n")  # Windows would change the line ends of a text
    warnings.showwarning = lambda message, *_, **__: note(f"warning: {message}")
    sys.stderr = cast(TextIO, _ForgivingStream(sys.stderr))
    code: Any = 0
    try:
        app(windows_expand_args=False)  # click would replace * and $ in a prompt
    except SystemExit as end:
        code = end.code
    except KeyboardInterrupt:  # a second one, while the first is being handled
        code = 130
    except MinigptError as error:  # before there is a command
        note(f"minigpt: {error}")
        code = 1
    except OSError as error:
        if _is_closed_pipe(error):
            _discard_stdout()
        elif error.filename is None and error.errno in _UNWRITABLE:
            code = _report_unwritable(error)
        else:
            raise
    ignore_interrupts()
    try:
        sys.stdout.flush()
    except OSError as error:
        if _is_closed_pipe(error):
            _discard_stdout()
        else:
            code = code or _report_unwritable(error)
    sys.exit(code)


def _report_unwritable(error: OSError) -> int:
    note(
        f"minigpt: standard output could not be written ({reason_of(error)}), so this output is lost; what was saved "
        "is complete"
    )
    _discard_stdout()
    return 1
