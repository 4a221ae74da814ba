"""`minigpt play`: writes a text together with a model, turn by turn."""

import contextlib
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_origin

import typer

from minigpt.cli.models import CompileOption, DtypeOption, QuantizeOption, open_engine, open_model
from minigpt.cli.options import CheckpointsOption, DeviceOption, names_of, settings_options
from minigpt.cli.render.terminal import note, show
from minigpt.config import SamplingConfig
from minigpt.errors import ConfigError, MinigptError
from minigpt.settings import annotations_of, value_types

if TYPE_CHECKING:
    from minigpt.generation.engines.engine import Engine
    from minigpt.tokenizer.tokenizer import Tokenizer

_NOT_HERE = {"samples", "beams", "length_penalty"}
_HELP = """\
Type text: the model goes on behind it. An empty line lets it go on as it is.
A line that ends in \\ goes on in the next; \"\"\" begins and ends a text of several lines.

/continue              let the model go on
/retry                 take its last words back and draw others
/undo                  take the last turn back, yours and the model's
/set                   show the settings;  /set temperature 0.7 changes one
/show                  show the whole text
/new                   begin a new text
/save FILE             write the text to a file
/help, /quit           (or Ctrl-D); Ctrl-C stops the model and keeps what it wrote
"""


@settings_options((SamplingConfig, [name for name in names_of(SamplingConfig) if name not in _NOT_HERE]))
def play(
    given: dict[str, Any],
    model: Annotated[str | None, typer.Argument(help="a run's name or a folder [newest]")] = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "float32",
    quantize: QuantizeOption = "auto",
    compiled: CompileOption = False,
    checkpoints: CheckpointsOption = Path("checkpoints"),
) -> None:
    """Write a text together with a model, turn by turn: type, and it goes on; /help says what else there is.

    Examples:

    - `minigpt play`

    - `minigpt play moby_dick --temperature 0.7 --until paragraph`
    """
    config = SamplingConfig(**given)
    checkpoint = open_model(model, checkpoints, device, dtype=dtype)
    engine = open_engine(checkpoint.model, quantize, compiled=compiled)
    note(f"{checkpoint.directory} · {checkpoint.model.config.n_parameters:,} parameters · {engine.description}")
    note("Type text and the model goes on; /help for more, Ctrl-D to end.")
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  input() then has a history and can be edited
    Session(engine, checkpoint.tokenizer, config).run(_lines())


class Session:
    """One text that grows by turns: each is what was typed and what the model wrote behind it."""

    def __init__(self, engine: "Engine", tokenizer: "Tokenizer", config: SamplingConfig) -> None:
        self.engine, self.tokenizer, self.config = engine, tokenizer, config
        self.turns: list[tuple[str, str]] = []
        self.commands: dict[str, Callable[[str], None]] = {
            "continue": lambda _: self.go_on(""),
            "retry": lambda _: self.retry(),
            "undo": lambda _: self.undo(),
            "set": self.set,
            "show": lambda _: print(self.text),
            "new": lambda _: self.turns.clear(),
            "save": self.save,
            "help": lambda _: note(_HELP),
        }

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(typed + written for typed, written in self.turns)

    def run(self, inputs: Iterator[str]) -> None:
        """Takes inputs to their end or /quit; a mistake is one line, and the session goes on."""
        for line in inputs:
            name, _, rest = line.partition(" ")
            if name in ("/quit", "/exit"):
                return
            try:
                if not name.startswith("/"):
                    self.go_on(line)
                elif name[1:] in self.commands:
                    self.commands[name[1:]](rest.strip())
                else:
                    note(f"{name} is no command; /help shows them, and a text may begin with a space and /")
            except MinigptError as error:
                note(f"{error}")

    def go_on(self, typed: str) -> None:
        """A turn: the text that was typed, on a line of its own, and what the model writes behind it."""
        before = self.text
        if typed and before and not before.endswith("\n"):
            typed = "\n" + typed
        self.turns.append((typed, ""))
        if self.config.seed is not None and len(self.turns) > 1:
            self.config = self.config.replace(seed=self.config.seed + 1)  # or every turn would draw the same
        self._write()

    def retry(self) -> None:
        """The model's last words once more, by other numbers."""
        if not self.turns:
            note("there is nothing to retry yet; type a text first")
            return
        if self.config.seed is not None:
            self.config = self.config.replace(seed=self.config.seed + 1)
        self.turns[-1] = (self.turns[-1][0], "")
        self._write()

    def undo(self) -> None:
        """Without the last turn."""
        if not self.turns:
            note("there is nothing to undo")
            return
        typed, written = self.turns.pop()
        note(f"taken back: {len(typed + written)} characters; the text ends in {self.text[-40:]!r}")

    def set(self, words: str) -> None:
        """Changes a setting, as `--name value` would, or shows them all."""
        name, _, value = words.partition(" ")
        name = name.lstrip("-").replace("-", "_")
        if not name:
            for each in names_of(SamplingConfig):
                if each not in _NOT_HERE:
                    note(f"{each.replace('_', '-')} {_written(getattr(self.config, each))}")
            return
        if name not in names_of(SamplingConfig) or name in _NOT_HERE:
            raise ConfigError(f"{name!r} is no setting; /set shows them")
        self.config = self.config.replace(**{name: _parsed(name, value.strip())})
        note(f"{name.replace('_', '-')} {_written(getattr(self.config, name))}")

    def save(self, file: str) -> None:
        """Writes the text to a file."""
        if not file:
            raise ConfigError("/save needs a file's name, as in /save story.txt")
        path = Path(file).expanduser()
        try:
            path.write_text(self.text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{path} cannot be written ({(error.strerror or str(error)).lower()})") from error
        note(f"{len(self.text)} characters in {path}")

    def _write(self) -> None:
        """Lets the model go on and notes what it writes, to its end or to Ctrl-C."""
        from minigpt.generation.streaming import generate_pieces

        typed, written = self.turns[-1]
        try:
            for piece in generate_pieces(self.engine, self.tokenizer, [self.text], self.config):
                show(piece.text)
                written += piece.text
                self.turns[-1] = (typed, written)
        except KeyboardInterrupt:
            note(" [stopped]")
            return
        print(flush=True)


def _lines() -> Iterator[str]:
    """What the user types, several lines put together, to Ctrl-D; Ctrl-C at the prompt forgets the line."""
    while True:
        try:
            line = input("> ")
            if line.strip().startswith('"""'):
                line = _block(line.strip()[3:])
            while line.endswith("\\"):
                line = line[:-1] + "\n" + input("… ")
        except EOFError:
            print(flush=True)
            return
        except KeyboardInterrupt:
            print(flush=True)
            continue
        yield line


def _block(first: str) -> str:
    """Lines up to one that ends in three quotation marks."""
    lines = [first]
    while not lines[-1].rstrip().endswith('"""') or len(lines) == 1 == len(lines[0]):
        lines.append(input("… "))
    lines[-1] = lines[-1].rstrip()[:-3]
    return "\n".join(lines).strip("\n")


def _parsed(name: str, text: str) -> Any:
    """A setting's value from what was typed.

    Raises: ConfigError where it is not of its kind.
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


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        return shlex.join(value) or "none"
    return "none" if value is None else str(value)
