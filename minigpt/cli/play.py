"""`minigpt play`: writes a text together with a model, turn by turn."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from minigpt.cli.models import CompileOption, DtypeOption, QuantizeOption, open_engine, open_model, out_of_memory_as
from minigpt.cli.options import CheckpointsOption, DeviceOption, NewestModelArgument, settings_options
from minigpt.cli.prompts import note_unread_text
from minigpt.cli.render.terminal import note, write
from minigpt.cli.session import OUT_OF_MEMORY, SESSION_SETTINGS, InteractiveSession, typed_lines
from minigpt.cli.signals import forget_interrupts
from minigpt.config import SamplingConfig
from minigpt.errors import GenerationError, MinigptError
from minigpt.units import count

if TYPE_CHECKING:
    from minigpt.generation.engines.engine import Engine
    from minigpt.tokenizer.tokenizer import Tokenizer

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


@settings_options((SamplingConfig, SESSION_SETTINGS))
def play(
    given: dict[str, Any],
    model: NewestModelArgument = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
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
    what = "token ids, such as 3 4," if checkpoint.tokenizer.name.startswith("none:") else "some text"
    note(f"Type {what} and press Enter: the model continues it. /help lists the commands, /quit quits.")
    Session(engine, checkpoint.tokenizer, config).run(typed_lines())


class Session(InteractiveSession):
    """One text that grows by turns, each the text typed and the text that the model wrote after it."""

    help_text = _HELP

    def __init__(self, engine: "Engine", tokenizer: "Tokenizer", config: SamplingConfig) -> None:
        super().__init__(engine, tokenizer, config)
        self.turns: list[tuple[str, str]] = []
        self._is_longer = False  # than the context, after the last turn
        self.commands |= {
            "continue": lambda _: self.take_turn(""),
            "retry": lambda _: self.retry(),
            "undo": lambda _: self.undo(),
            "new": lambda _: self.start_again(),
        }

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(typed + written for typed, written in self.turns)

    def take_turn(self, typed: str) -> None:
        """Appends the typed text, on a new line, and lets the model continue it."""
        before = self.text
        note_unread_text(self.engine.model, self.tokenizer, [typed], special_tokens=True)
        if typed and before and not before.endswith("\n"):
            typed = "\n" + typed
        self._write([*self.turns, (typed, "")])

    def retry(self) -> None:
        """Replaces the model's text of the last turn, with other random numbers."""
        if not self.turns:
            note("there is nothing to retry yet; type some text first")
            return
        *earlier, (typed, _) = self.turns
        self._write([*earlier, (typed, "")])

    def undo(self) -> None:
        """Removes the last turn."""
        if not self.turns:
            note("there is nothing to undo")
            return
        typed, written = self.turns.pop()
        rest = f"the text now ends with {self.text[-40:]!r}" if self.turns else "the text is now empty"
        note(f"removed {count(len(typed + written), 'character')}; {rest}")

    def start_again(self) -> None:
        """Removes all turns; the files of the old text stay."""
        self.turns.clear()
        self.saved.clear()
        self._is_longer = False

    def _say_longer(self) -> None:
        """Prints a note once when the text has become longer than the context."""
        context, keep_first = self.engine.n_positions, self.config.keep_first
        n_tokens = len(self.tokenizer.prefix_ids) + len(self.tokenizer.encode(self.text))
        before, self._is_longer = self._is_longer, n_tokens > context
        if self._is_longer and not before:
            seen = f"its first {keep_first} tokens and its end" if keep_first else "only its end"
            note(f"the text is now longer than the context ({context} tokens); the model reads {seen}")

    def _write(self, turns: list[tuple[str, str]]) -> None:
        """Lets the model continue the text of these turns until it ends or Ctrl-C stops it, with the next seed.

        If a turn is to be replaced and the model is stopped before it has written anything, the old turn is kept.
        Raises: MinigptError if it cannot; if it has not written anything, the turns and the seed are those before.
        """
        from minigpt.generation.streaming import generate_pieces

        before, seed = self.turns, (self.config, self.seed_is_used)
        self.next_seed()
        self.turns = turns
        typed, written = turns[-1]
        try:
            with out_of_memory_as(GenerationError(OUT_OF_MEMORY)):
                for piece in generate_pieces(self.engine, self.tokenizer, [self.text], self.config):
                    write(piece.text, end="")
                    written += piece.text
                    self.turns[-1] = (typed, written)
        except KeyboardInterrupt:
            if not written and len(turns) == len(before):
                self.turns = before
            forget_interrupts()
            note(" [stopped]")
            self._say_longer()
            return
        except MinigptError:
            if not written:
                self.turns, (self.config, self.seed_is_used) = before, seed
            raise
        write("")
        self._say_longer()
