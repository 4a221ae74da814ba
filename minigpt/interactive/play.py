"""`minigpt play`: writes a text together with a model, turn by turn."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minigpt.cli.models import ENGINE_SETTINGS, DtypeOption, loaded_line, open_engine, open_model
from minigpt.cli.options import CheckpointsOption, DeviceOption, ModelArgument, settings_options
from minigpt.cli.prompts import note_unread_text
from minigpt.cli.render.terminal import note
from minigpt.config import SamplingConfig
from minigpt.interactive.session import SESSION_SETTINGS, InteractiveSession, typed_lines
from minigpt.units import count

if TYPE_CHECKING:
    from minigpt.generation.engine import Engine
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


@settings_options((SamplingConfig, SESSION_SETTINGS), engine_options=ENGINE_SETTINGS)
def play(
    given: dict[str, Any],
    model: ModelArgument = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    *,
    engine_options: dict[str, Any],
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
    engine = open_engine(checkpoint.model, ENGINE_SETTINGS(**engine_options))
    note(loaded_line(checkpoint, engine))
    what = "token ids, such as 3 4," if checkpoint.tokenizer.name.startswith("none:") else "some text"
    note(f"Type {what} and press Enter: the model continues it. /help lists the commands, /quit quits.")
    Session(engine, checkpoint.tokenizer, config).run(typed_lines())


class Session(InteractiveSession):
    """One text that grows by turns."""

    help_text = _HELP
    nothing_typed = "type some text first"

    def __init__(self, engine: "Engine", tokenizer: "Tokenizer", config: SamplingConfig) -> None:
        super().__init__(engine, tokenizer, config)
        self.commands["continue"] = lambda _: self.take_turn("")

    @property
    def text(self) -> str:
        return "".join(typed + (written or "") for typed, written in self.turns)

    def take_turn(self, typed: str) -> None:
        """Appends the typed text, on a new line, and lets the model continue it."""
        before = self.text
        note_unread_text(self.engine.model, self.tokenizer, [typed], special_tokens=True)
        if typed and before and not before.endswith("\n"):
            typed = "\n" + typed
        self.write_turn([*self.turns, (typed, None)])

    def pieces(self) -> Iterator[str]:
        from minigpt.generation.streaming import generate_pieces

        return (piece.text for piece in generate_pieces(self.engine, self.tokenizer, [self.text], self.config))

    def removed(self, typed: str, written: str) -> str:
        rest = f"the text now ends with {self.text[-40:]!r}" if self.turns else "the text is now empty"
        return f"removed {count(len(typed + written), 'character')}; {rest}"

    def end_turn(self, *, stopped: bool) -> None:  # noqa: ARG002
        """Prints a note once when the text has become longer than the context."""
        context, keep_first = self.engine.n_positions, self.config.keep_first
        n_tokens = len(self.tokenizer.prefix_ids) + len(self.tokenizer.encode(self.text))
        before, self.n_unread = self.n_unread, max(0, n_tokens - context)
        if self.n_unread and not before:
            seen = f"its first {keep_first} tokens and its end" if keep_first else "only its end"
            note(f"the text is now longer than the context ({context} tokens); the model reads {seen}")
