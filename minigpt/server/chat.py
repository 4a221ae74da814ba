"""`POST /v1/chat/completions`: conversations with models that have a chat template."""

import re
import secrets
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from jinja2 import TemplateError

from minigpt.data.transcript import CHAT_TEMPLATE, ReplyReader, stop_in_turn
from minigpt.generation.healing import Prompt, encode_prompt
from minigpt.server.api_error import ApiError, invalid
from minigpt.server.completion_options import CompletionOptions, generation_options
from minigpt.server.serve_config import ServeConfig
from minigpt.server.served_model import ServedModel
from minigpt.server.template_sandbox import TemplateSandbox

# Fields of OpenAI's that are accepted only with a value that asks for nothing.
_IMPOSSIBLE = {
    "tools": "tools are not possible: the model writes text and cannot call tools",
    "functions": "functions are not possible: the model writes text and cannot call tools",
    "store": "store is not possible: the server stores no conversations",
}
_LONGEST_TEXT = 4_000_000  # characters that a template may make of a conversation
_TEMPLATE_SECONDS = 10.0  # that a template may take


def chat_options(body: Mapping[str, Any], model: ServedModel, config: ServeConfig) -> CompletionOptions:
    """The options of a body that fits the schema CHAT_COMPLETION: the prompt is the rendered conversation.

    Raises: ApiError if the model has no chat template, its template refuses the conversation, or a field asks for what
    the server cannot do.
    """
    if model.chat_template is None:
        raise invalid(
            f"the model {model.name} has no chat template, because it was not trained on conversations; send a prompt "
            "to /v1/completions instead",
            "messages",
            "no_chat_template",
        )
    for name, message in _IMPOSSIBLE.items():
        if body.get(name):
            raise invalid(message, name)
    given = {name: value for name, value in body.items() if value is not None and name not in _IMPOSSIBLE}
    prompt = encode_conversation(
        model.chat_template,
        read_messages(body["messages"]),
        model,
        token_healing=given.get("token_healing", True),
        seconds=min(_TEMPLATE_SECONDS, config.timeout),
    )
    # With "context" the model sees only the end of a text that is too long.
    most = model.context_length - (0 if "context" in given else len(prompt.ids))
    if most < 1:
        raise invalid(
            f"the conversation has {len(prompt.ids)} tokens, but the model's context length is {model.context_length}; "
            'shorten it, or send "context": "slide" to let the model see only the end of it',
            "messages",
            "context_length_exceeded",
        )
    wanted = given.get("max_completion_tokens", given.get("max_tokens", most))
    given["max_tokens"] = wanted
    if "stop" in given and model.chat_template == CHAT_TEMPLATE:
        stops = [given["stop"]] if isinstance(given["stop"], str) else given["stop"]
        given["stop"] = list(map(stop_in_turn, stops))
    top = given.pop("top_logprobs", None)
    if given.pop("logprobs", False):
        given["logprobs"] = top or 0
    elif top is not None:
        raise invalid(f"top_logprobs ({top}) needs logprobs: true", "top_logprobs")
    options = generation_options(given, [prompt], [""], model, config)
    return replace(options, is_chat=True, one_turn=model.chat_template == CHAT_TEMPLATE)


def read_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """The messages of a body that fits the schema, as templates read them: role, content and name. A developer is the
    system.

    Raises: ApiError for a part that is not text.
    """
    return [
        {
            "role": "system" if message["role"] == "developer" else message["role"],
            "content": _text(message["content"], f"messages[{index}].content"),
            **({"name": message["name"]} if message.get("name") else {}),
        }
        for index, message in enumerate(messages)
    ]


def _text(content: str | Sequence[Mapping[str, Any]], name: str) -> str:
    """The text of a message; several parts are joined."""
    if isinstance(content, str):
        return content
    for index, part in enumerate(content):
        if part["type"] != "text":
            message = f"{name}[{index}] has the type {part['type'][:40]!a}, but the model reads only text"
            raise invalid(message, f"{name}[{index}]")
        if "text" not in part:
            raise invalid(f"{name}[{index}].text is missing", f"{name}[{index}].text")
    return "".join(part["text"] for part in content)


def encode_conversation(
    template: str, messages: Sequence[Mapping[str, str]], model: ServedModel, *, token_healing: bool, seconds: float
) -> Prompt:
    """The tokens of a conversation, up to where the model's answer begins; the template may take so many seconds.

    The special tokens that a template writes are these tokens, and no others are added. Their names in a message are
    ordinary text, so that no message can fake a turn. minigpt's own template writes none.
    Raises: ApiError if the template fails, takes too long or refuses the conversation.
    """
    if template == CHAT_TEMPLATE:
        return model.encode(_render(template, messages, model, seconds), token_healing=token_healing)
    tokenizer = model.tokenizer
    placeholders = _Placeholders(tokenizer.special)
    hidden = [
        {key: placeholders.hide(value) if value and key != "role" else value for key, value in message.items()}
        for message in messages
    ]
    earlier, last = placeholders.split(_render(template, hidden, model, seconds))
    if not earlier:
        return encode_prompt(tokenizer, last, token_healing=token_healing, prefix=False)
    ids = [id for part in earlier for id in ([part] if isinstance(part, int) else tokenizer.encode(part))]
    if not tokenizer.encode(last):
        return Prompt(ids)
    prompt = encode_prompt(tokenizer, last, token_healing=token_healing, prefix=False)
    return Prompt(ids if prompt.end == last else ids + prompt.ids, prompt.end)


class _Placeholders:
    """Stands in for the names of special tokens in messages while a template is rendered.

    A placeholder has only characters that templates do not change, and a number that a client cannot know.
    """

    def __init__(self, special: Mapping[str, int]) -> None:
        self._special = special
        self._begin = f"@{secrets.randbelow(10**12):012}."
        self._numbers = {name: number for number, name in enumerate(special)}
        name = "|".join(map(re.escape, sorted(special, key=len, reverse=True)))  # the longest of several that fit
        self._name = re.compile(name)
        self._found = re.compile(f"{re.escape(self._begin)}(?P<hidden>[0-9]+)@|(?P<name>{name})")

    def hide(self, text: str) -> str:
        """The text with placeholders in place of names."""
        return self._name.sub(lambda match: f"{self._begin}{self._numbers[match[0]]}@", text)

    def split(self, rendered: str) -> tuple[list[str | int], str]:
        """The ids of the names in a rendered text with the text before each, and the text after the last.

        The text has its hidden names again.
        """
        parts: list[str | int] = []
        text: list[str] = []
        names, end = list(self._special), 0
        for match in self._found.finditer(rendered):
            text.append(rendered[end : match.start()])
            end = match.end()
            if match["name"] is None:
                text.append(names[int(match["hidden"])])
            else:
                parts += ["".join(text), self._special[match["name"]]]
                text.clear()
        return parts, "".join([*text, rendered[end:]])


def _render(template: str, messages: Sequence[Mapping[str, str]], model: ServedModel, seconds: float) -> str:
    """The text of a conversation, up to where the model's answer begins.

    The template comes with the model, so it runs in a sandbox.
    Raises: ApiError if the template fails, takes too long or refuses the conversation.
    """

    def refuse(message: object) -> None:
        raise TemplateError(message if isinstance(message, str) else "it gives no reason")

    names = {id: name for name, id in model.tokenizer.special.items()}
    tokens = {"bos_token": names[model.tokenizer.special_id("bos_token")], **model.tokenizer.vocabulary.roles}
    tokens["eos_token"] = names[model.tokenizer.end_of_text]
    environment = TemplateSandbox()
    environment.globals["raise_exception"] = refuse
    try:
        with _time_limit(seconds):
            parts = environment.from_string(template).generate(
                messages=[dict(message) for message in messages],
                add_generation_prompt=True,
                **tokens,
            )
            text, length = [], 0
            for part in parts:
                length += len(part)
                if length > _LONGEST_TEXT:
                    raise TemplateError("the text is too long")
                text.append(part)
    except _OutOfTimeError as error:
        raise ApiError(504, f"the model's chat template took longer than {seconds:g} s", code="timeout") from error
    except Exception as error:  # a template can raise any, RecursionError and MemoryError too
        reason = str(error)[:200] or type(error).__name__
        raise ApiError(400, f"the model's chat template refuses the conversation: {reason}") from error
    return "".join(text)


class _OutOfTimeError(Exception):
    """Ends a template that takes too long."""


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raises _OutOfTimeError in the code of the context, in this thread, before the first line that is too late.

    A trace function is called for every line: an endless loop in a template calls nothing else.
    """
    deadline, before = time.monotonic() + seconds, sys.gettrace()

    def trace(*_: object) -> Any:
        if time.monotonic() > deadline:
            raise _OutOfTimeError
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


class Reply:
    """Reads the text of one answer piece by piece: its content, and where it ends.

    The transcripts of models that minigpt trained on conversations are read as in `minigpt chat`: further lines of a
    message begin with a space, and any other line begins another turn. Other models' answers are the text itself.
    """

    def __init__(self, model: ServedModel) -> None:
        self._reader = ReplyReader() if model.chat_template == CHAT_TEMPLATE else None
        self._has_ended = False

    def feed(self, text: str, finish_reason: str | None) -> tuple[str, str | None]:
        """The content that the text adds, and the reason why the answer ends."""
        if self._reader is not None:
            text, ends = ("", True) if self._has_ended else self._reader.feed(text)
            self._has_ended |= ends
        return text, "stop" if self._has_ended and finish_reason is not None else finish_reason


def chat_answer(answer: Mapping[str, Any], model: ServedModel) -> dict[str, Any]:
    """The answer of a completion in the form of a chat completion."""
    choices = []
    for choice in answer["choices"]:
        content, finish_reason = Reply(model).feed(choice["text"], choice["finish_reason"])
        message = {"role": "assistant", "content": content}
        choices.append({**_without_text(choice), "message": message, "finish_reason": finish_reason})
    return {**answer, "id": _chat_id(answer), "object": "chat.completion", "choices": choices}


async def chat_pieces(pieces: AsyncIterator[Mapping[str, Any]], model: ServedModel) -> AsyncIterator[Mapping[str, Any]]:
    """The pieces of a completion in the form of a chat completion; the first of each choice names the role."""
    replies: dict[int, Reply] = {}
    try:
        async for piece in pieces:
            choices = []
            for choice in piece["choices"]:
                role = {} if choice["index"] in replies else {"role": "assistant"}
                reply = replies.setdefault(choice["index"], Reply(model))
                content, finish_reason = reply.feed(choice["text"], choice["finish_reason"])
                delta = {**role, "content": content}
                choices.append({**_without_text(choice), "delta": delta, "finish_reason": finish_reason})
            yield {**piece, "id": _chat_id(piece), "object": "chat.completion.chunk", "choices": choices}
    finally:
        await pieces.aclose()  # type: ignore[attr-defined]


def _without_text(choice: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in choice.items() if name != "text"}


def _chat_id(answer: Mapping[str, Any]) -> str:
    return f"chat{answer['id']}"
