"""`minigpt chat`: talks to a model that was trained on a chat log."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minigpt.cli.models import CompileOption, DtypeOption, QuantizeOption, open_engine, open_model, out_of_memory_as
from minigpt.cli.options import (
    CheckpointsOption,
    DeviceOption,
    NewestModelArgument,
    command_line,
    model_name,
    settings_options,
)
from minigpt.cli.render.terminal import note, write
from minigpt.cli.session import OUT_OF_MEMORY, SESSION_SETTINGS, InteractiveSession, typed_lines
from minigpt.cli.signals import forget_interrupts
from minigpt.config import SamplingConfig
from minigpt.data.transcript import CHAT_TEMPLATE, Message, ReplyReader, stop_in_turn, transcript
from minigpt.errors import ConfigError, GenerationError, MinigptError
from minigpt.settings import check_utf8
from minigpt.units import count

if TYPE_CHECKING:
    from minigpt.generation.engines.engine import Engine
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


@settings_options((SamplingConfig, SESSION_SETTINGS))
def chat(
    given: dict[str, Any],
    model: NewestModelArgument = None,
    system: Annotated[str | None, typer.Option("--system", help="begin the conversation with this instruction")] = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    quantize: QuantizeOption = "auto",
    compiled: CompileOption = False,
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
    engine = open_engine(checkpoint.model, quantize, compiled=compiled)
    note(f"{checkpoint.directory} · {checkpoint.model.config.n_parameters:,} parameters · {engine.description}")
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
            f"{checkpoint.directory} has a chat template of another program, which `minigpt chat` does not read; run "
            f"`{serve}` and send conversations to /v1/chat/completions, which does"
        )
    raise ConfigError(
        f"{checkpoint.directory} was not trained on a chat log, so it cannot chat; use `{play}` or `{generate}`"
    )


class ChatSession(InteractiveSession):
    """A conversation: the user's messages, each followed by the model's answer if there is one."""

    help_text = _HELP

    def __init__(
        self, engine: "Engine", tokenizer: "Tokenizer", config: SamplingConfig, system: str | None = None
    ) -> None:
        super().__init__(engine, tokenizer, config)
        self.system = system
        self.messages: list[Message] = []
        self._n_dropped = 0
        self.commands |= {
            "retry": lambda _: self.retry(),
            "undo": lambda _: self.undo(),
            "new": lambda _: self.start_again(),
            "system": self.set_system,
            "seed": lambda seed: self.set(f"seed {seed}"),
        }

    @property
    def text(self) -> str:
        """The transcript of the conversation."""
        return transcript([*self._instruction(), *self.messages])

    def saved_text(self, path: Path) -> str:
        """The transcript; for a .jsonl file, a line that `minigpt train` reads as a conversation."""
        if path.suffix != ".jsonl":
            return self.text
        messages = [asdict(each) for each in (*self._instruction(), *self.messages)]
        return json.dumps({"messages": messages}, ensure_ascii=False) + "\n"

    def take_turn(self, typed: str) -> None:
        """Adds the user's message and lets the model answer it."""
        if not typed.strip():
            note("type a message, or /help")
            return
        self._answer([*self.messages, Message("user", typed.strip())])

    def retry(self) -> None:
        """Replaces the last answer, with other random numbers."""
        if not self.messages:
            note("there is nothing to retry yet; type a message first")
            return
        has_answer = self.messages[-1].role == "assistant"
        self._answer(self.messages[:-1] if has_answer else self.messages)

    def undo(self) -> None:
        """Removes the last message of the user and its answer."""
        if not self.messages:
            note("there is nothing to undo")
            return
        while self.messages.pop().role != "user":
            pass
        left = sum(each.role == "user" for each in self.messages)
        note(f"removed the last message and its answer; {count(left, 'message')} of yours left")

    def start_again(self) -> None:
        """Removes all messages; the files of the old conversation stay."""
        self.messages.clear()
        self.saved.clear()
        self._n_dropped = 0
        note("a new conversation")

    def set_system(self, text: str) -> None:
        """Sets or removes the instruction at the beginning."""
        check_utf8("the instruction", text)
        self.system = text or None
        note(f"the conversation begins with: {text}" if text else "the conversation begins without an instruction")

    def _instruction(self) -> list[Message]:
        return [Message("system", self.system)] if self.system else []

    def _prompt(self) -> str:
        """The transcript up to the answer, without the oldest turns if it leaves too little of the context for one."""
        context = self.engine.n_positions
        room = context - min(self.config.max_new_tokens, context // 2)
        first = 0
        while True:
            prompt = transcript([*self._instruction(), *self.messages[first:]], reply=True)
            later = next((i for i in range(first + 1, len(self.messages)) if self.messages[i].role == "user"), None)
            n_tokens = self._length(prompt)
            if n_tokens <= room or later is None:
                break
            first = later
        self._say_dropped(first)
        if n_tokens > context:
            note(f"your message is longer than the model's context ({context} tokens), which reads only its end")
        return prompt

    def _length(self, prompt: str) -> int:
        """The number of tokens of a prompt, those that the tokenizer puts before it included."""
        return len(self.tokenizer.prefix_ids) + len(self.tokenizer.encode(prompt))

    def _say_dropped(self, first: int) -> None:
        dropped = sum(each.role == "user" for each in self.messages[:first])
        if dropped > self._n_dropped:
            note(
                f"the context ({self.engine.n_positions} tokens) has no room for your first "
                f"{'message' if dropped == 1 else f'{dropped:,} messages'}: the model no longer reads "
                f"{'it' if dropped == 1 else 'them'}"
            )
        self._n_dropped = dropped

    def _say_full(self, prompt: str, n_new: int) -> None:
        """Prints a note if the window moved while the model continued this prompt with `n_new` tokens."""
        from minigpt.generation.decoding import window_moves

        context, n_prompt = self.engine.n_positions, self._length(prompt)
        if n_prompt <= context and window_moves(n_prompt, n_new, context, self.config.keep_first):
            note(
                f"the context ({context} tokens) was full before the end of this answer: the model no longer read all "
                "of the conversation; a lower /set max-new-tokens prevents that"
            )

    def _answer(self, messages: list[Message]) -> None:
        """Lets the model answer the last of these messages until its turn ends or Ctrl-C stops it.

        If an answer is to be replaced and the model is stopped before it has written anything, the old one is kept.
        Raises: MinigptError if it cannot; if it has not written anything, the messages and the seed are those before.
        """
        from minigpt.generation.streaming import generate_pieces

        before, seed = self.messages, (self.config, self.seed_is_used)
        self.next_seed()
        self.messages = messages
        answer, reader, ended, reason = "", ReplyReader(), False, None
        prompt, n_new = "", 0
        try:
            with out_of_memory_as(GenerationError(OUT_OF_MEMORY)):
                prompt = self._prompt()
                sampling = self.config.replace(stop=tuple(map(stop_in_turn, self.config.stop)))
                for piece in generate_pieces(self.engine, self.tokenizer, [prompt], sampling):
                    n_new += 1
                    text, ended = reader.feed(piece.text)
                    if text:
                        write(text, end="")
                        answer += text
                        self.messages = [*messages, Message("assistant", answer)]
                    reason = piece.finish_reason
                    if ended:
                        break
        except KeyboardInterrupt:
            if not answer and len(messages) <= len(before):
                self.messages = before
            forget_interrupts()
            note(" [stopped]")
            self._say_full(prompt, n_new)
            return
        except MinigptError:
            if not answer:
                self.messages, (self.config, self.seed_is_used) = before, seed
            raise
        write("")
        if not answer:
            self.messages = [*messages, Message("assistant", "")]
            note("(the model gave no answer; /retry asks again)")
        elif not ended and reason == "length":
            note(f"(cut after {self.config.max_new_tokens:,} tokens; /set max-new-tokens changes that)")
        self._say_full(prompt, n_new)
