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
from typing import Annotated, Any, NoReturn, TextIO, cast

import typer
from typer.core import TyperGroup

from minigpt import __version__, edges
from minigpt.cli.options import NamedModels
from minigpt.cli.plain_help import PlainCommand, PlainHelp
from minigpt.cli.render.terminal import note, write
from minigpt.cli.signals import ignore_interrupts, raise_on_interrupt, was_interrupted
from minigpt.errors import ConfigError, MinigptError, reason_of

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
            self.data[name] = _made(name, edges.load(command))
        return self.data[name]


def _made(name: str, function: Any) -> Any:
    """The command of a function. If its first argument is a MODEL or RUN, --model gives that too."""
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    single.command(name, cls=PlainCommand)(function)
    command: Any = typer.main.get_command(single)
    if command.params and command.params[0].metavar in ("MODEL", "RUN"):
        command.params.insert(1, _made("", _named_model).params[0])
    return command


def _named_model(named_model: NamedModels = None) -> None: ...


class _Commands(PlainHelp, TyperGroup):
    """The command group, which turns errors into exit codes: 1 for an error the user can fix, 130 for Ctrl-C."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        found = edges.commands() | _SPINE
        in_order = [name for name in (*_ORDER, *sorted(found.keys() - set(_ORDER))) if name in found]
        self.commands = cast(Any, _LazyCommands({name: found[name] for name in in_order}))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        for edge in edges.EDGES:
            if args[0] in edge.commands and args[0] not in self.commands:
                raise ConfigError(f"{args[0]} is not installed: the package {edge.package} is missing")
        return super().resolve_command(ctx, args)

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        with _usage_errors_in_one_line():
            color = False if os.environ.get("TERM") == "dumb" else None
            return super().make_context(*arguments, color=color, **options)

    def invoke(self, ctx: Any) -> Any:
        try:
            try:
                raise_on_interrupt()
                _check_thread_count()
                with _usage_errors_in_one_line():
                    return super().invoke(ctx)
            finally:
                ignore_interrupts()
        except KeyboardInterrupt as interrupt:
            raise _stopped() from interrupt
        except MinigptError as error:
            command = self.commands.get(ctx.invoked_subcommand)
            note(f"minigpt: {_as_typed(str(error), command.params) if command else error}")
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


def _as_typed(message: str, parameters: list[Any]) -> str:
    """The message with settings named as options: "top_p (2.0) must be …" becomes "--top-p (2.0) must be …".

    A name that is also a word, such as seed, names a setting where its value follows.
    """
    typed = (each for each in parameters if each.expose_value)
    spelled = [(each.name, option) for each in typed for option in each.opts if option.startswith("--")]
    options = dict(spelled) | {option[2:].replace("-", "_"): option for _, option in spelled}
    word = r"(?:^|(?<=with )|(?<= and )|(?<=most )|(?<=least )|(?<=, ))\w+(?= \(|: | is not UTF-8)"
    name = r"""(?<![\w./'"-])\w+_\w+(?![\w./'"])"""
    return re.sub(f"{word}|{name}", lambda found: options.get(found[0], found[0]), message)


def _stopped() -> typer.Exit:
    note("minigpt: stopped")
    return typer.Exit(130)


@contextmanager
def _usage_errors_in_one_line() -> Iterator[None]:
    """Prints what typer says of a wrong option or argument as one sentence, with the likely one if there is any."""
    try:
        yield
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            raise
        said = error.format_message()
        if likely := getattr(error, "possibilities", None):
            said = f"{error.message.partition('. Did')[0].rstrip('.')}; did you mean {likely[0]!r}?"
        said = said.replace(". Did", "; did").replace("Value error, ", "").rstrip(".")
        advice = "" if said[-1] == "?" or error.ctx is None else f"; see {error.ctx.command_path} --help"
        note(f"minigpt: {said[0].lower()}{said[1:]}{advice}")
        raise typer.Exit(2) from error


def _lacks_memory(error: BaseException | None) -> bool:
    """Whether an error, or one that it followed, is for lack of memory, also of memory to load a package."""
    while error is not None:
        if isinstance(error, MemoryError) or (isinstance(error, ImportError) and _NO_MEMORY.search(str(error))):
            return True
        error = error.__cause__ or error.__context__
    return False


def _is_closed_pipe(error: Exception) -> bool:
    """Whether the reader of standard output has closed the pipe, as `| head` does."""
    is_plain = isinstance(error, OSError) and error.filename is None and error.errno in _CLOSED_PIPE
    return is_plain or isinstance(error, BrokenPipeError)


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
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help", "--help-all"], "max_content_width": 120},
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
        stream = getattr(sys, name) or Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115  (None if it is closed)
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
