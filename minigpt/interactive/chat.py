"""`minigpt chat`: talks to a model that was trained on a chat log."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from minigpt.chat_logs.transcript import CHAT_TEMPLATE, Message, ReplyReader, stop_in_turn, transcript
from minigpt.cli.models import ENGINE_SETTINGS, DtypeOption, loaded_line, open_engine, open_model
from minigpt.cli.options import (
    CheckpointsOption,
    DeviceOption,
    ModelArgument,
    command_line,
    common_option,
    model_name,
    settings_options,
)
from minigpt.cli.render.terminal import note
from minigpt.config import SamplingConfig
from minigpt.errors import ConfigError
from minigpt.interactive.session import SESSION_SETTINGS, InteractiveSession, typed_lines
from minigpt.settings import check_utf8
from minigpt.units import count

if TYPE_CHECKING:
    from minigpt.generation.engine import Engine
    from minigpt.storage.checkpoint import Checkpoint
    from minigpt.tokenizer.tokenizer import Tokenizer

_HELP = """\
Type a message, and the model answers it. End a line with \\ to continue it on the next; start and end a message of
several lines with \"\"\".

/retry                 replace the model's last answer with another
/undo                  remove the last message and its answer
/system TEXT           begin the conversation with this instruction;  /system removes it
/seed N                make the next answers reproducible;  /seed none undoes that
/set                   show the settings;  /set temperature 0.7 changes one
/show                  show the whole conversation
/new                   start a new conversation, with the same instruction
/save FILE             write the conversation to a file: a line of JSON if it is named .jsonl, else text
/help, /quit           (or Ctrl-D); Ctrl-C stops the model and keeps what it wrote
"""


@settings_options((SamplingConfig, SESSION_SETTINGS), engine_options=ENGINE_SETTINGS)
def chat(
    given: dict[str, Any],
    model: ModelArgument = None,
    system: Annotated[str | None, common_option(help="begin the conversation with this instruction")] = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    *,
    engine_options: dict[str, Any],
    checkpoints: CheckpointsOption = Path("checkpoints"),
) -> None:
    """Talk to a model that was trained on a chat log: type a message, the model answers.

    Type /help for the commands that undo, retry, save, and change settings.

    Examples:

    - `minigpt chat`
    - `minigpt chat support --temperature 0.5 --system "Answer in one sentence."`
    """
    config = SamplingConfig(**given)
    check_utf8("--system", system or "")
    checkpoint = open_model(model, checkpoints, device, dtype=dtype)
    _check_template(checkpoint, checkpoints)
    engine = open_engine(checkpoint.model, ENGINE_SETTINGS(**engine_options))
    note(loaded_line(checkpoint, engine))
    note("Type a message and press Enter: the model answers. /help lists the commands, /quit quits.")
    ChatSession(engine, checkpoint.tokenizer, config, system).run(typed_lines())


def _check_template(checkpoint: "Checkpoint", checkpoints: Path) -> None:
    """Raises: ConfigError for a model that was not trained on transcripts."""
    template, name = checkpoint.tokenizer.chat_template, model_name(checkpoint.directory, checkpoints)
    if template == CHAT_TEMPLATE:
        return
    play, generate, serve = (
        command_line(*arguments, checkpoints=checkpoints)
        for arguments in (("play", name), ("generate", "Hello", "--model", name), ("serve", name))
    )
    if template is not None:
        raise ConfigError(
            f"{name} has a chat template of another program, which `minigpt chat` does not read; run "
            f"`{serve}` and send conversations to /v1/chat/completions, which does"
        )
    raise ConfigError(f"{name} was not trained on a chat log, so it cannot chat; use `{play}` or `{generate}`")


class ChatSession(InteractiveSession):
    """A conversation: each turn is the user's message and the model's answer."""

    help_text = _HELP
    nothing_typed = "type a message first"

    def __init__(
        self, engine: "Engine", tokenizer: "Tokenizer", config: SamplingConfig, system: str | None = None
    ) -> None:
        super().__init__(engine, tokenizer, config)
        self.system = system
        self._prompted, self._n_new, self._finish = "", 0, ""  # of the last answer
        self.commands |= {"system": self.set_system, "seed": lambda seed: self.set(f"seed {seed}")}

    @property
    def messages(self) -> list[Message]:
        """The conversation without its instruction."""
        return self._messages(self.turns)

    @property
    def text(self) -> str:
        return transcript([*self._instruction(), *self.messages])

    def saved_text(self, path: Path) -> str:
        """The transcript; for a .jsonl file, a line that `minigpt train` reads as a conversation."""
        if path.suffix != ".jsonl":
            return self.text
        messages = [asdict(each) for each in (*self._instruction(), *self.messages)]
        return json.dumps({"messages": messages}, ensure_ascii=False) + "\n"

    def take_turn(self, typed: str) -> None:
        if not typed.strip():
            note("type a message, or /help")
            return
        self.write_turn([*self.turns, (typed.strip(), None)])

    def removed(self, typed: str, written: str) -> str:  # noqa: ARG002
        return f"removed the last message and its answer; {count(len(self.turns), 'message')} of yours left"

    def start_again(self) -> None:
        super().start_again()
        note("a new conversation")

    def set_system(self, text: str) -> None:
        check_utf8("the instruction", text)
        self.system = text or None
        note(f"the conversation begins with: {text}" if text else "the conversation begins without an instruction")

    def pieces(self) -> Iterator[str]:
        from minigpt.generation.streaming import generate_pieces

        self._prompted, self._n_new, self._finish = "", 0, ""
        self._prompted = self._prompt()
        reader, sampling = ReplyReader(), self.config.replace(stop=tuple(map(stop_in_turn, self.config.stop)))
        for piece in generate_pieces(self.engine, self.tokenizer, [self._prompted], sampling):
            self._n_new += 1
            text, ended = reader.feed(piece.text)
            self._finish = "turn" if ended else piece.finish_reason or ""
            if text:
                yield text
            if ended:
                return

    def end_turn(self, *, stopped: bool) -> None:
        """Prints notes on an answer that is empty or was cut, and on a window that moved while it was written."""
        from minigpt.generation.decoding import window_moves

        if not stopped and not self.turns[-1][1]:
            note("(the model gave no answer; /retry asks again)")
        elif not stopped and self._finish == "length":
            note(f"(cut after {self.config.max_new_tokens:,} tokens; /set max-new-tokens changes that)")
        context, n_prompt = self.engine.n_positions, self._length(self._prompted)
        if n_prompt <= context and window_moves(n_prompt, self._n_new, context, self.config.keep_first):
            note(
                f"the context ({context} tokens) was full before the end of this answer: the model no longer read all "
                "of the conversation; a lower /set max-new-tokens prevents that"
            )

    def _instruction(self) -> list[Message]:
        return [Message("system", self.system)] if self.system else []

    @staticmethod
    def _messages(turns: list[tuple[str, str | None]]) -> list[Message]:
        pairs = (
            (Message("user", typed), None if answer is None else Message("assistant", answer))
            for typed, answer in turns
        )
        return [message for pair in pairs for message in pair if message is not None]

    def _prompt(self) -> str:
        """The transcript up to the answer, without the oldest turns if it leaves too little of the context for one."""
        context = self.engine.n_positions
        room = context - min(self.config.max_new_tokens, context // 2)
        for first in range(len(self.turns)):
            prompt = transcript([*self._instruction(), *self._messages(self.turns[first:])], reply=True)
            n_tokens = self._length(prompt)
            if n_tokens <= room:
                break
        if first > self.n_unread:
            messages, them = ("message", "it") if first == 1 else (f"{first:,} messages", "them")
            note(
                f"the context ({context} tokens) has no room for your first {messages}: the model no longer reads "
                f"{them}"
            )
        self.n_unread = first
        if n_tokens > context:
            note(f"your message is longer than the model's context ({context} tokens), which reads only its end")
        return prompt

    def _length(self, prompt: str) -> int:
        """The number of tokens of a prompt, those that the tokenizer puts before it included."""
        return len(self.tokenizer.prefix_ids) + len(self.tokenizer.encode(prompt))
