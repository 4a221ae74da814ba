"""What the interactive commands `play` and `chat` share: lines from the terminal, commands, settings and saving."""

import contextlib
import dataclasses
import hashlib
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_origin

from minigpt.cli.models import out_of_memory_as
from minigpt.cli.options import names_of, unescaped
from minigpt.cli.render.terminal import note, prose, write
from minigpt.cli.signals import forget_interrupts
from minigpt.config import SamplingConfig
from minigpt.errors import ConfigError, GenerationError, MinigptError, reason_of
from minigpt.settings import annotations_of, check_utf8, value_types
from minigpt.storage.folder import replace_file
from minigpt.units import count

if TYPE_CHECKING:
    from minigpt.generation.engine import Engine
    from minigpt.tokenizer.tokenizer import Tokenizer

OUT_OF_MEMORY = "out of memory; close other programs, or /save the text and start again with a smaller model"
# Settings of several texts at once, and one of prompts: a session's text is the model's too.
_EXCLUDED = {"samples", "best_of", "beams", "length_penalty", "special_tokens"}
_COMMANDS, _SETTINGS = 23, 25  # columns of the names in the help and in the list of settings
_END = "\x04"  # Ctrl-D, which the console of Windows gives as a character
SESSION_SETTINGS = [name for name in names_of(SamplingConfig) if name not in _EXCLUDED]


class InteractiveSession:
    """A text that a user and a model write in turns, and the commands for it.

    A turn is what the user typed and what the model wrote after it, None if it was stopped before. A subclass adds its
    own `commands`, and says what a typed line does (`take_turn`), what the model writes (`pieces`), and what is saved
    (`text`).
    """

    help_text = ""
    nothing_typed = ""  # what to do before /retry

    def __init__(self, engine: "Engine", tokenizer: "Tokenizer", config: SamplingConfig) -> None:
        self.engine, self.tokenizer, self.config = engine, tokenizer, config
        self.turns: list[tuple[str, str | None]] = []
        self.n_unread = 0  # what of the text the model does not read, as the user was told last
        self.seed_is_used = False  # by a turn
        self.saved: dict[Path, str] = {}  # files with this text, and the SHA-256 of what was written to each
        self.commands: dict[str, Callable[[str], None]] = {
            "set": self.set,
            "show": lambda _: prose()(f"{self.text}\n"),
            "save": self.save,
            "help": lambda _: self.show_help(),
            "retry": lambda _: self.retry(),
            "undo": lambda _: self.undo(),
            "new": lambda _: self.start_again(),
        }

    @property
    def text(self) -> str:
        """The whole text."""
        raise NotImplementedError

    def take_turn(self, typed: str) -> None:
        """Answers a line that is not a command."""
        raise NotImplementedError

    def pieces(self) -> Iterator[str]:
        """Yields what the model writes after the last turn's text."""
        raise NotImplementedError

    def end_turn(self, *, stopped: bool) -> None:
        """Tells the user about the turn that has ended, or that Ctrl-C has `stopped`."""
        raise NotImplementedError

    def removed(self, typed: str, written: str) -> str:
        """What to say of the turn that /undo has removed."""
        raise NotImplementedError

    def run(self, inputs: Iterator[str]) -> None:
        """Runs the inputs until their end or /quit; an error or Ctrl-C ends one input, not the session."""
        for line in inputs:
            name, _, rest = line.partition(" ")
            if name in ("/quit", "/exit"):
                return
            try:
                if not name.startswith("/"):
                    check_utf8("the text", line, "type it in UTF-8")
                    self.take_turn(line)
                elif name[1:] in self.commands:
                    self.commands[name[1:]](rest.strip())
                else:
                    note(f"{name} is not a command; /help lists them (put a space before a text that starts with /)")
            except KeyboardInterrupt:
                forget_interrupts()
                note(" [stopped]")
            except MinigptError as error:
                note(f"{error}")

    def show_help(self) -> None:
        for line in self.help_text.splitlines():
            note(line, indent=_COMMANDS if line.startswith("/") else 0)

    def retry(self) -> None:
        """Replaces what the model wrote in the last turn, with other random numbers."""
        if not self.turns:
            note(f"there is nothing to retry yet; {self.nothing_typed}")
            return
        *earlier, (typed, _) = self.turns
        self.write_turn([*earlier, (typed, None)])

    def undo(self) -> None:
        if not self.turns:
            note("there is nothing to undo")
            return
        typed, written = self.turns.pop()
        note(self.removed(typed, written or ""))

    def start_again(self) -> None:
        """Removes all turns; the files of the old text stay."""
        self.turns.clear()
        self.saved.clear()
        self.n_unread = 0

    def write_turn(self, turns: list[tuple[str, str | None]]) -> None:
        """Lets the model write the end of the last of these turns, until it is done or Ctrl-C stops it.

        A given seed that a turn has used is advanced, so that no two turns draw the same numbers. If a turn is to be
        replaced and the model is stopped before it has written anything, the old turn is kept. If it fails before that,
        the turns and the seed are those before.
        """
        before, seed = self.turns, (self.config, self.seed_is_used)
        if self.seed_is_used and self.config.seed is not None:
            self.config = self.config.replace(seed=self.config.seed + 1)
        self.seed_is_used, self.turns = True, turns
        typed, written, stopped = turns[-1][0], "", False
        try:
            show = prose()
            with out_of_memory_as(GenerationError(OUT_OF_MEMORY)):
                for text in self.pieces():
                    show(text)
                    written += text
                    turns[-1] = (typed, written)
        except KeyboardInterrupt:
            if not written and len(turns) == len(before):
                self.turns = before
            forget_interrupts()
            note(" [stopped]")
            stopped = True
        except MinigptError:
            if not written:
                self.turns, (self.config, self.seed_is_used) = before, seed
            raise
        else:
            write("")
            turns[-1] = (typed, written)
        self.end_turn(stopped=stopped)

    def set(self, argument: str) -> None:
        """Changes a setting, given as `name value`, or prints them all."""
        name, _, value = argument.partition(" ")
        name = name.lstrip("-").replace("-", "_")
        if not name:
            for each in dataclasses.fields(SamplingConfig):
                if each.name in SESSION_SETTINGS:
                    setting = f"{each.name.replace('_', '-')} {_formatted(getattr(self.config, each.name))}"
                    note(f"{setting:{_SETTINGS}}  {each.metadata['help']}", indent=_SETTINGS + 2)
            return
        if name not in SESSION_SETTINGS:
            raise ConfigError(f"{name!r} is not a setting that can be changed here; /set lists them")
        self.config = self.config.replace(**{name: _parsed(name, value.strip())})
        if name == "seed":
            self.seed_is_used = False
        note(f"{name.replace('_', '-')} {_formatted(getattr(self.config, name))}")

    def save(self, file: str) -> None:
        """Writes the text to a file, which may exist if it holds what this text was saved as, or after `--force`."""
        force, file = file.startswith("--force "), file.removeprefix("--force ").strip()
        if not file:
            raise ConfigError("/save needs a file name, as in /save story.txt")
        try:
            path = Path(file).expanduser()
        except RuntimeError as error:
            raise ConfigError(
                f"{file} is in a home folder that is unknown; give a path without ~, as in /save story.txt"
            ) from error
        text = self.saved_text(path)
        content = text.encode()
        try:
            target = path.resolve()
            if path.exists() and not force:
                self._check_saved(path, target, file)
            if path.is_file() or not path.exists():
                replace_file(target, content)
            else:  # a device or a pipe
                path.write_bytes(content)
        except MinigptError:  # ConfigError is a ValueError
            raise
        except OSError as error:
            raise ConfigError(f"{path} cannot be written ({reason_of(error)})") from error
        except ValueError as error:
            raise ConfigError(f"{file!r} is not a file name ({error}); give another, as in /save story.txt") from error
        self.saved[target] = hashlib.sha256(content).hexdigest()
        note(f"saved {count(len(text), 'character')} in {path}")

    def _check_saved(self, path: Path, target: Path, file: str) -> None:
        """Raises: ConfigError if an existing file holds something else than this text as it was saved last."""
        replacing = f"give another name, or replace it by /save --force {file}"
        if target not in self.saved:
            raise ConfigError(f"{path} exists already; {replacing}")
        if not path.is_file():  # a device or a pipe
            return
        with path.open("rb") as stored:
            digest = hashlib.file_digest(stored, "sha256").hexdigest()
        if digest != self.saved[target]:
            raise ConfigError(f"{path} was changed since it was saved here; {replacing}")

    def saved_text(self, path: Path) -> str:  # noqa: ARG002
        """What `save` writes to this file."""
        return self.text


def typed_lines() -> Iterator[str]:
    """Yields what the user types, with continued lines joined, until Ctrl-D; Ctrl-C at the prompt discards the line."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  gives input() a history and editing
    while True:
        try:
            line = input("> ")
            if line == _END:
                raise EOFError
            if line.strip().startswith('"""'):
                line = _block(line.strip()[3:])
            while line.endswith("\\"):
                line = line[:-1] + "\n" + input("… ")
        except EOFError:
            write("")
            return
        except KeyboardInterrupt:
            forget_interrupts()
            write("")
            continue
        yield line


def _block(first: str) -> str:
    """Reads lines up to one that ends in three quotation marks."""
    lines = [first]
    while not lines[-1].rstrip().endswith('"""'):
        lines.append(input("… "))
    lines[-1] = lines[-1].rstrip()[:-3]
    return "\n".join(lines).strip("\n")


def _parsed(name: str, text: str) -> Any:
    """A setting's value from the text typed."""
    annotation = annotations_of(SamplingConfig)[name]
    kinds = value_types(annotation)
    if text in ("", "none") and (len(kinds) == 0 or annotation is not kinds[0]):
        return None
    kind = kinds[0]
    if kind is bool:
        if text not in ("on", "off"):
            raise ConfigError(f"{name} ({text!r}) must be on or off")
        return text == "on"
    if get_origin(kind) is tuple:
        return () if text == "none" else tuple(map(unescaped, _split(name, text)))
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError as error:
            noun = "a whole number" if kind is int else "a number"
            raise ConfigError(f"{name} ({text!r}) must be {noun}") from error
    return text


def _split(name: str, text: str) -> tuple[str, ...]:
    """The texts that a shell would read."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        reason = str(error).lower()  # no closing quotation, or no escaped character
        hint = 'put a text with an apostrophe in quotation marks, as in "don\'t"'
        if "quotation" not in reason:
            hint = "write a backslash twice"
        raise ConfigError(f"{name} ({text!r}) has {reason}; {hint}") from error


def _formatted(value: Any) -> str:
    if isinstance(value, tuple):
        return shlex.join(value) or "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else str(value)
