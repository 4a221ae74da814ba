"""`POST /v1/chat/completions`: conversations with models that have a chat template."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from minigpt.data.transcript import CHAT_TEMPLATE, ROLES, ReplyReader
from minigpt.server.api_error import ApiError, invalid
from minigpt.server.completion_options import CompletionOptions, generation_options
from minigpt.server.serve_config import ServeConfig
from minigpt.server.served_model import ServedModel

# The beginnings of another turn in minigpt's own transcripts, at which an answer ends.
_NEXT_TURNS = tuple(f"\n{role.capitalize()}:" for role in ROLES)
_LONGEST_TEXT = 4_000_000  # characters that a template may make of a conversation


def chat_options(body: Mapping[str, Any], model: ServedModel, config: ServeConfig) -> CompletionOptions:
    """The options of a body that fits the schema CHAT_COMPLETION: the prompt is the rendered conversation.

    Raises: ApiError if the model has no chat template, or its template refuses the conversation.
    """
    if model.chat_template is None:
        raise invalid(
            f"the model {model.name} has no chat template, because it was not trained on conversations; send a prompt "
            "to /v1/completions instead",
            "messages",
            "no_chat_template",
        )
    given = {name: value for name, value in body.items() if value is not None}
    text = render(model.chat_template, body["messages"], model)
    prompt = model.encode(text, token_healing=given.get("token_healing", True))
    most = model.context_length - len(prompt.ids)
    if most < 1:
        raise invalid(
            f"the conversation has {len(prompt.ids)} tokens, but the model's context length is {model.context_length}",
            "messages",
            "context_length_exceeded",
        )
    wanted = given.get("max_completion_tokens", given.get("max_tokens", most))
    given["max_tokens"] = wanted
    if model.chat_template == CHAT_TEMPLATE:
        stop = given.get("stop", ())
        given["stop"] = [*((stop,) if isinstance(stop, str) else stop), *_NEXT_TURNS]
    return generation_options(given, [prompt], model, config)


def render(template: str, messages: Sequence[Mapping[str, str]], model: ServedModel) -> str:
    """The text of a conversation, up to where the model's answer begins.

    The template comes with the model, so it runs in jinja2's sandbox.
    Raises: ApiError if the template fails or refuses the conversation.
    """

    def refuse(message: str) -> None:
        raise TemplateError(message)

    names = {id: name for name, id in model.tokenizer.special.items()}
    end_of_text = names[model.tokenizer.end_of_text]
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = refuse
    try:
        parts = environment.from_string(template).generate(
            messages=[dict(message) for message in messages],
            add_generation_prompt=True,
            bos_token=end_of_text,
            eos_token=end_of_text,
        )
        text, length = [], 0
        for part in parts:
            length += len(part)
            if length > _LONGEST_TEXT:
                raise TemplateError("the text is too long")
            text.append(part)
    except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise ApiError(400, f"the model's chat template refuses the conversation: {str(error)[:200]}") from error
    return "".join(text)


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
        choices.append({"index": choice["index"], "message": message, "logprobs": None, "finish_reason": finish_reason})
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
                choices.append(
                    {
                        "index": choice["index"],
                        "delta": {**role, "content": content},
                        "logprobs": None,
                        "finish_reason": finish_reason,
                    }
                )
            yield {**piece, "id": _chat_id(piece), "object": "chat.completion.chunk", "choices": choices}
    finally:
        await pieces.aclose()  # type: ignore[attr-defined]


def _chat_id(answer: Mapping[str, Any]) -> str:
    return f"chat{answer['id']}"
