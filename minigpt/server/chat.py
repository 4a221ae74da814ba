"""`POST /v1/chat/completions`: conversations with models that have a chat template."""

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, cast

from minigpt.chat_logs.transcript import CHAT_TEMPLATE, Message, Role, stop_in_turn, transcript
from minigpt.generation.healing import Prompt, encode_prompt
from minigpt.server.api_error import invalid
from minigpt.server.completion_options import completion_of
from minigpt.server.completions import Completion
from minigpt.server.request_bodies import ChatBody, CompletionBody, GenerationBody
from minigpt.server.serve_config import ServeConfig
from minigpt.server.served_model import ServedModel
from minigpt.tokenizer.tokenizer import Tokenizer

# Fields of OpenAI's that are accepted only with a value that asks for nothing.
_IMPOSSIBLE = {
    "tools": "tools are not possible: the model writes text and cannot call tools",
    "functions": "functions are not possible: the model writes text and cannot call tools",
    "store": "store is not possible: the server stores no conversations",
}
Render = Callable[[Sequence[Mapping[str, str]], Mapping[str, str]], Awaitable[str]]  # messages and special tokens


async def new_chat(body: ChatBody, model: ServedModel, config: ServeConfig, render: Render) -> Completion:
    """The completion that a request for an answer asks for: the prompt is what the chat template makes of it.

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
        if getattr(body, name):
            raise invalid(message, name)
    if body.top_logprobs is not None and not body.logprobs:
        raise invalid(f"top_logprobs ({body.top_logprobs}) needs logprobs: true", "top_logprobs")
    is_transcript = model.chat_template == CHAT_TEMPLATE
    messages = [message.for_template() for message in body.messages]
    if is_transcript:
        text = transcript([Message(cast("Role", each["role"]), each["content"]) for each in messages], reply=True)
        prompt = await asyncio.to_thread(model.encode, text, token_healing=body.token_healing)
    else:
        prompt = await encode_conversation(messages, model, render, token_healing=body.token_healing)
    # With "context" the model sees only the end of a text that is too long.
    most = model.context_length - (0 if body.context else len(prompt.ids))
    if most < 1:
        raise invalid(
            f"the conversation has {len(prompt.ids)} tokens, but the model's context length is {model.context_length}; "
            'shorten it, or send "context": "slide" to let the model see only the end of it',
            "messages",
            "context_length_exceeded",
        )
    stop: Any = [body.stop] if isinstance(body.stop, str) else body.stop
    shared = {name: getattr(body, name) for name in GenerationBody.model_fields}
    asked = CompletionBody.model_construct(
        **shared | {"stop": list(map(stop_in_turn, stop)) if is_transcript else stop},
        max_tokens=body.max_completion_tokens or body.max_tokens or most,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
    )
    return await asyncio.to_thread(
        completion_of, asked, [prompt], [""], model, config, is_chat=True, is_transcript=is_transcript
    )


async def encode_conversation(
    messages: Sequence[Mapping[str, str]], model: ServedModel, render: Render, *, token_healing: bool
) -> Prompt:
    """The tokens of a conversation, up to where the model's answer begins.

    The special tokens that a template writes are these tokens, and no others are added. Their names in a message are
    ordinary text, so that no message can fake a turn.
    Raises: ApiError if the template fails, takes too long or refuses the conversation.
    """
    tokenizer = model.tokenizer
    names = {id: name for name, id in tokenizer.special.items()}
    tokens = {"bos_token": names[tokenizer.special_id("bos_token")], **tokenizer.vocabulary.roles}
    tokens["eos_token"] = names[tokenizer.end_of_text]
    placeholders = _Placeholders(tokenizer.special)
    hidden = [
        {key: placeholders.hide(value) if value and key != "role" else value for key, value in message.items()}
        for message in messages
    ]
    rendered = await render(hidden, tokens)
    return await asyncio.to_thread(_encode, *placeholders.split(rendered), tokenizer, token_healing)


def _encode(earlier: Sequence[str | int], last: str, tokenizer: Tokenizer, token_healing: bool) -> Prompt:
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
