"""`minigpt play`: writes a text together with a model, turn by turn."""

import contextlib
import dataclasses
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_origin

import typer

from minigpt.cli.models import CompileOption, DtypeOption, QuantizeOption, open_engine, open_model
from minigpt.cli.options import CheckpointsOption, DeviceOption, names_of, settings_options
from minigpt.cli.render.terminal import note, write
from minigpt.config import SamplingConfig
from minigpt.errors import ConfigError, MinigptError
from minigpt.settings import annotations_of, value_types
from minigpt.units import count

if TYPE_CHECKING:
    from minigpt.generation.engines.engine import Engine
    from minigpt.tokenizer.tokenizer import Tokenizer

_EXCLUDED = {"samples", "beams", "length_penalty"}  # settings of several texts at once
_HELP = """\
Type some text, and the model continues it. An empty line lets the model continue without new text.
End a line with \\ to continue it on the next; start and end a text of several lines with \"\"\".

/continue              let the model continue
/retry                 replace the model's last text with another
/undo                  remove the last turn, yours and the model's
/set                   show the settings;  /set temperature 0.7 changes one
/show                  show the whole text
/new                   start a new text
/save FILE             write the text to a file;  /save --force FILE replaces an existing one
/help, /quit           (or Ctrl-D); Ctrl-C stops the model and keeps what it wrote
"""


@settings_options((SamplingConfig, [name for name in names_of(SamplingConfig) if name not in _EXCLUDED]))
def play(
    given: dict[str, Any],
    model: Annotated[
        str | None,
        typer.Argument(help="a run's name, or a model's file or folder [default: the newest run]", metavar="MODEL"),
    ] = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "float32",
    quantize: QuantizeOption = "auto",
    compiled: CompileOption = False,
    checkpoints: CheckpointsOption = Path("checkpoints"),
) -> None:
    """Write a text together with a model: type some text, the model continues it, and so on.

    Type /help for the commands that undo, retry, save, and change settings.

    Examples:

    - `minigpt play`

    - `minigpt play moby_dick --temperature 0.7 --until paragraph`
    """
    config = SamplingConfig(**given)
    checkpoint = open_model(model, checkpoints, device, dtype=dtype)
    engine = open_engine(checkpoint.model, quantize, compiled=compiled)
    note(f"{checkpoint.directory} · {checkpoint.model.config.n_parameters:,} parameters · {engine.description}")
    note("Type some text and press Enter: the model continues it. /help lists the commands, Ctrl-D quits.")
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  gives input() a history and editing
    Session(engine, checkpoint.tokenizer, config).run(_lines())


class Session:
    """One text that grows by turns, each the text typed and the text that the model wrote after it."""

    def __init__(self, engine: "Engine", tokenizer: "Tokenizer", config: SamplingConfig) -> None:
        self.engine, self.tokenizer, self.config = engine, tokenizer, config
        self.turns: list[tuple[str, str]] = []
        self.saved: set[Path] = set()
        self.commands: dict[str, Callable[[str], None]] = {
            "continue": lambda _: self.take_turn(""),
            "retry": lambda _: self.retry(),
            "undo": lambda _: self.undo(),
            "set": self.set,
            "show": lambda _: write(self.text),
            "new": lambda _: self.turns.clear(),
            "save": self.save,
            "help": lambda _: show_help(),
        }

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(typed + written for typed, written in self.turns)

    def run(self, inputs: Iterator[str]) -> None:
        """Runs the inputs until their end or /quit; an error is printed in one line and does not end the session."""
        for line in inputs:
            name, _, rest = line.partition(" ")
            if name in ("/quit", "/exit"):
                return
            try:
                if not name.startswith("/"):
                    self.take_turn(line)
                elif name[1:] in self.commands:
                    self.commands[name[1:]](rest.strip())
                else:
                    note(f"{name} is not a command; /help lists them (put a space before a text that starts with /)")
            except MinigptError as error:
                note(f"{error}")

    def take_turn(self, typed: str) -> None:
        """Appends the typed text, on a new line, and lets the model continue it."""
        before = self.text
        if typed and before and not before.endswith("\n"):
            typed = "\n" + typed
        self.turns.append((typed, ""))
        if self.config.seed is not None and len(self.turns) > 1:
            self.config = self.config.replace(seed=self.config.seed + 1)  # so that no two turns draw the same numbers
        self._write()

    def retry(self) -> None:
        """Replaces the model's text of the last turn, with other random numbers."""
        if not self.turns:
            note("there is nothing to retry yet; type some text first")
            return
        if self.config.seed is not None:
            self.config = self.config.replace(seed=self.config.seed + 1)
        self.turns[-1] = (self.turns[-1][0], "")
        self._write()

    def undo(self) -> None:
        """Removes the last turn."""
        if not self.turns:
            note("there is nothing to undo")
            return
        typed, written = self.turns.pop()
        rest = f"the text now ends with {self.text[-40:]!r}" if self.turns else "the text is now empty"
        note(f"removed {count(len(typed + written), 'character')}; {rest}")

    def set(self, argument: str) -> None:
        """Changes a setting, given as `name value`, or prints them all."""
        name, _, value = argument.partition(" ")
        name = name.lstrip("-").replace("-", "_")
        if not name:
            for each in dataclasses.fields(SamplingConfig):
                if each.name not in _EXCLUDED:
                    setting = f"{each.name.replace('_', '-')} {_formatted(getattr(self.config, each.name))}"
                    note(f"{setting:25}  {each.metadata['help']}")
            return
        if name not in names_of(SamplingConfig) or name in _EXCLUDED:
            raise ConfigError(f"{name!r} is not a setting that can be changed here; /set lists them")
        self.config = self.config.replace(**{name: _parsed(name, value.strip())})
        note(f"{name.replace('_', '-')} {_formatted(getattr(self.config, name))}")

    def save(self, file: str) -> None:
        """Writes the text to a file, which may exist if this session wrote it, or after `--force`."""
        force, file = file.startswith("--force "), file.removeprefix("--force ").strip()
        if not file:
            raise ConfigError("/save needs a file name, as in /save story.txt")
        path = Path(file).expanduser()
        try:
            if path.exists() and path.resolve() not in self.saved and not force:
                raise ConfigError(f"{path} exists already; give another name, or replace it by /save --force {file}")
            path.write_text(self.text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{path} cannot be written ({(error.strerror or str(error)).lower()})") from error
        self.saved.add(path.resolve())
        note(f"saved {count(len(self.text), 'character')} in {path}")

    def _write(self) -> None:
        """Lets the model continue the text until it ends or Ctrl-C stops it."""
        from minigpt.generation.streaming import generate_pieces

        typed, written = self.turns[-1]
        try:
            for piece in generate_pieces(self.engine, self.tokenizer, [self.text], self.config):
                write(piece.text, end="")
                written += piece.text
                self.turns[-1] = (typed, written)
        except KeyboardInterrupt:
            note(" [stopped]")
            return
        write("")


def show_help() -> None:
    """Prints the commands."""
    for line in _HELP.splitlines():
        note(line)


def _lines() -> Iterator[str]:
    """Yields what the user types, with continued lines joined, until Ctrl-D; Ctrl-C at the prompt discards the line."""
    while True:
        try:
            line = input("> ")
            if line.strip().startswith('"""'):
                line = _block(line.strip()[3:])
            while line.endswith("\\"):
                line = line[:-1] + "\n" + input("… ")
        except EOFError:
            write("")
            return
        except KeyboardInterrupt:
            write("")
            continue
        yield line


def _block(first: str) -> str:
    """Reads lines up to one that ends in three quotation marks."""
    lines = [first]
    while not lines[-1].rstrip().endswith('"""') or len(lines) == 1 == len(lines[0]):
        lines.append(input("… "))
    lines[-1] = lines[-1].rstrip()[:-3]
    return "\n".join(lines).strip("\n")


def _parsed(name: str, text: str) -> Any:
    """A setting's value from the text typed.

    Raises: ConfigError if the text does not have the setting's type.
    """
    annotation = annotations_of(SamplingConfig)[name]
    kinds = value_types(annotation)
    if text in ("", "none") and (len(kinds) == 0 or annotation is not kinds[0]):
        return None
    kind = kinds[0]
    if get_origin(kind) is tuple:
        return tuple(shlex.split(text))
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError as error:
            noun = "a whole number" if kind is int else "a number"
            raise ConfigError(f"{name} ({text!r}) must be {noun}") from error
    return text


def _formatted(value: Any) -> str:
    if isinstance(value, tuple):
        return shlex.join(value) or "none"
    return "none" if value is None else str(value)
