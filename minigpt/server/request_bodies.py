"""The bodies of requests as types: pydantic checks them, and the OpenAPI file shows them."""

import difflib
import re
import reprlib
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, model_validator

from minigpt.config import SamplingConfig
from minigpt.server.api_error import ApiError, invalid
from minigpt.server.serve_config import MOST_PROMPTS

_MOST_LOGPROBS: Final = 20
_MOST_SAMPLES: Final = 128
_LARGEST_ID: Final = 2**31
_LONGEST_SHOWN: Final = 60  # characters of a name in a message
_TAGS: Final = ("(text)", "(texts)", "(ids)", "(lists)", "(parts)")


class Body(BaseModel):
    """A JSON object. A field whose value is null counts as missing: OpenAI's clients send back all fields they know."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        """The body in these bytes of JSON.

        Raises: ApiError with one sentence: the field, its value, and what would be right.
        """
        try:
            return cls.model_validate_json(raw)
        except ValidationError as error:
            raise _refusal(error.errors(include_url=False)[0]) from error

    @model_validator(mode="before")
    @classmethod
    def _given(cls, fields: Any) -> Any:
        if not isinstance(fields, dict):
            return fields
        given = {name: value for name, value in fields.items() if value is not None}
        for name in given:
            if name not in cls.model_fields:
                raise _UnknownFieldError(name, *cls.model_fields)
        return given

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: Any) -> Any:
        schema = handler(core_schema)
        for field in handler.resolve_ref_schema(schema)["properties"].values():
            if "default" in field and "type" in field:
                field["type"] = [field["type"], "null"]
        return schema


class _UnknownFieldError(ValueError):
    """Its arguments are the field's name and those that are known."""


def _refusal(found: Mapping[str, Any]) -> ApiError:
    """The sentence for one of the errors that pydantic has found."""
    kind, place = found["type"], [part for part in found["loc"] if part not in _TAGS]
    unknown, *known = found["ctx"]["error"].args if kind == "value_error" else [""]
    place += [unknown[:_LONGEST_SHOWN]] if unknown else []
    name = "".join(f"[{part}]" if isinstance(part, int) else f".{_escaped(part)}" for part in place).removeprefix(".")
    if kind == "json_invalid":
        return invalid(f"the body must be JSON: {found['ctx']['error']}")
    if kind == "missing":
        return invalid(f"{name} is missing", name)
    if kind == "value_error":
        close = difflib.get_close_matches(unknown[:_LONGEST_SHOWN], known, n=1)
        return invalid(f"unknown field {name!r}" + "".join(f"; did you mean {each}?" for each in close), name)
    must = re.sub(r"^\w+ should", "must", found["msg"]).replace(" after validation", "")
    if kind == "list_type" and found["loc"][-1] in _TAGS:
        must = "must be a string or an array"
    value = _escaped(reprlib.repr(found["input"]))
    return invalid(f"{name or 'the body'} ({value}) {must}", name or None)


def _escaped(text: str) -> str:
    return ascii(text[:_LONGEST_SHOWN])[1:-1] if not (text.isascii() and text.isprintable()) else text[:_LONGEST_SHOWN]


def _own(name: str, **bounds: Any) -> Any:
    """The field of a setting of SamplingConfig, with its default, help text and bounds."""
    field = SamplingConfig.__dataclass_fields__[name]
    names = {"min": "ge", "max": "le", "above": "gt"}
    own = {names[key]: bound for key, bound in field.metadata["bounds"].items() if key in names and bound is not None}
    return Field(field.default, description=field.metadata["help"], **{**own, **bounds})


def _form(prompt: Any) -> str:
    if isinstance(prompt, str):
        return "(text)"
    first = prompt[0] if isinstance(prompt, list) and prompt else None
    return "(texts)" if isinstance(first, str) else "(lists)" if isinstance(first, list) else "(ids)"


_FIRST = Field(fail_fast=True)  # reports the first item that does not fit, of millions
_Count = Annotated[int, Field(ge=0, le=_LARGEST_ID)]
_Ids = Annotated[list[_Count], _FIRST, Field(min_length=1)]
_Prompts = (_FIRST, Field(min_length=1, max_length=MOST_PROMPTS))
_Prompt = Annotated[
    Annotated[str, Tag("(text)")]
    | Annotated[list[str], *_Prompts, Tag("(texts)")]
    | Annotated[_Ids, Tag("(ids)")]
    | Annotated[list[_Ids], *_Prompts, Tag("(lists)")],
    Discriminator(_form),
]
_Word = Annotated[str, Field(min_length=1, max_length=200)]
_Stop = Annotated[
    Annotated[_Word, Tag("(text)")] | Annotated[list[_Word], Field(max_length=16), Tag("(texts)")],
    Discriminator(lambda stop: "(text)" if isinstance(stop, str) else "(texts)"),
]
_ModelName = Annotated[str | None, Field(description="name of the model; without it the first one", max_length=200)]
_Ignored = Field(None, description="accepted and ignored", max_length=1000)
_Unread = Field(None, description="accepted and ignored")
_Logprobs = Annotated[int, Field(ge=0, le=_MOST_LOGPROBS)]


class StreamOptions(Body):
    """What a stream has beside the text."""

    include_usage: bool = Field(False, description="count the tokens in a last piece")
    include_obfuscation: bool | None = _Unread


class GenerationBody(Body):
    """What completions and chat completions have in common."""

    model: _ModelName = None
    temperature: float = Field(1.0, description=_own("temperature").description, ge=0, le=2)
    top_p: float = Field(1.0, description=_own("top_p").description, gt=0, le=1)
    n: int = Field(1, description="number of texts to return for each prompt", ge=1, le=_MOST_SAMPLES)
    stop: _Stop = Field([], description="texts to stop before")
    seed: int | None = Field(
        None, description="the same seed gives the same text, whatever else the server does", ge=-(2**63), le=2**63 - 1
    )
    presence_penalty: float = _own("presence_penalty", ge=-2, le=2)
    frequency_penalty: float = _own("frequency_penalty", ge=-2, le=2)
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] = Field(
        {}, description="numbers to add to the scores of tokens, by the token's id", max_length=1024
    )
    stream: bool = Field(False, description="send the text in pieces, as server-sent events")
    stream_options: StreamOptions | None = None
    top_k: int | None = Field(
        None, description=f"{_own('top_k').description}; 0 and -1 mean all tokens", ge=-1, le=_LARGEST_ID
    )
    min_p: float = _own("min_p")
    typical_p: float = _own("typical_p")
    repetition_penalty: float = _own("repetition_penalty")
    no_repeat_ngram_size: int = _own("no_repeat_ngram_size", le=100)
    min_new_tokens: int = _own("min_new_tokens", le=_LARGEST_ID)
    bad_words: Annotated[list[_Word], Field(max_length=100)] = Field([], description=_own("bad_words").description)
    until: Literal["sentence", "paragraph", "line"] | None = _own("until")
    context: str | None = Field(
        None, description="slide, or keep-first:N; without it a text must fit into the context", max_length=40
    )
    allow_invalid_utf8: bool = _own("allow_invalid_utf8")
    token_healing: bool = _own("token_healing")
    allow_unseen_tokens: bool = _own("allow_unseen_tokens")
    # What OpenAI's clients send to bill, route or cache a request.
    user: str | None = _Ignored
    safety_identifier: str | None = _Ignored
    service_tier: str | None = _Ignored
    prompt_cache_key: str | None = _Ignored
    prompt_cache_retention: str | None = _Ignored
    metadata: dict[str, Any] | None = _Unread
    prompt_cache_options: dict[str, Any] | None = _Unread


class CompletionBody(GenerationBody):
    """`POST /v1/completions`."""

    prompt: _Prompt = Field(
        "",
        description="one text, several texts, the token ids of one text, or those of several; without it a new "
        "document begins. A prompt that is exactly the name of a special token is this token",
    )
    max_tokens: _Count = Field(16, description="maximum number of tokens to generate")
    best_of: int | None = Field(
        None,
        description="number of texts to generate for each prompt, of which the n most likely per token are returned",
        ge=1,
        le=_MOST_SAMPLES,
    )
    special_tokens: bool = _own("special_tokens")
    echo: bool = Field(False, description="return the prompt before the text")
    logprobs: _Logprobs | None = Field(
        None,
        description="give the log-probability of each token, and this many of the most likely tokens; with echo of "
        "the prompt's tokens, too",
    )
    return_token_ids: bool = Field(
        False,
        description="give the ids of the prompt's tokens and of the text's; with logprobs also the id and the bytes "
        "of each token and of its alternatives",
    )
    suffix: str = Field("", description="refused: GPT-2 continues a text, it cannot fill a gap")


class Part(BaseModel):
    """A part of a message; the model reads only text."""

    type: Literal["text"]
    text: str


class MessageBody(Body):
    """A message of a conversation, also as clients send it back."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[
        Annotated[str, Tag("(text)")] | Annotated[list[Part], _FIRST, Tag("(parts)")],
        Discriminator(lambda content: "(text)" if isinstance(content, str) else "(parts)"),
    ] = Field(description="a text, or parts of the type text, which are joined")
    name: str | None = Field(None, description="the name of who speaks, for chat templates that show it")
    id: str | None = _Unread
    reasoning_content: str | None = _Unread
    annotations: list[dict[str, Any]] | None = _Unread
    tool_calls: Annotated[list[dict[str, Any]], Field(max_length=0)] = Field([], description="refused unless empty")

    def for_template(self) -> dict[str, str]:
        """The message as templates read it. A developer is the system."""
        parts = self.content
        return {
            "role": "system" if self.role == "developer" else self.role,
            "content": parts if isinstance(parts, str) else "".join(part.text for part in parts),
            **({"name": self.name} if self.name else {}),
        }


class TextFormat(BaseModel):
    """What an answer is."""

    type: Literal["text"]


class ChatBody(GenerationBody):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[MessageBody], _FIRST, Field(min_length=1)] = Field(description="the conversation so far")
    max_tokens: int | None = Field(None, description="maximum number of tokens to generate", ge=1, le=_LARGEST_ID)
    max_completion_tokens: int | None = Field(None, description="the newer name of max_tokens", ge=1, le=_LARGEST_ID)
    logprobs: bool = Field(False, description="give the log-probability of each token of the answer")
    top_logprobs: _Logprobs | None = Field(None, description="with logprobs, give this many of the most likely tokens")
    response_format: TextFormat | None = Field(None, description="accepted if it asks for text")
    store: bool = Field(False, description="refused if true: the server stores no conversations")
    tools: list[dict[str, Any]] = Field([], description="refused unless empty: the model cannot call tools")
    functions: list[dict[str, Any]] = Field([], description="refused unless empty: the older name of tools")
    tool_choice: Literal["none", "auto"] | None = _Unread
    function_call: Literal["none", "auto"] | None = _Unread
    modalities: list[Literal["text"]] | None = Field(None, description="accepted if it asks for text")
    parallel_tool_calls: bool | None = _Unread
    reasoning_effort: str | None = _Unread
    verbosity: str | None = _Unread
    prediction: dict[str, Any] | None = _Unread


class InspectBody(Body):
    """`POST /inspect`."""

    model: _ModelName = None
    prompt: Annotated[
        Annotated[str, Field(min_length=1, max_length=100_000), Tag("(text)")]
        | Annotated[_Ids, Field(min_length=1, max_length=100_000), Tag("(ids)")],
        Discriminator(lambda prompt: "(text)" if isinstance(prompt, str) else "(ids)"),
    ] = Field(description="a text, or its token ids; its end is inspected if it is too long")
    top: int = Field(5, description="number of the most likely tokens at each position", ge=1, le=_MOST_LOGPROBS)


class TokenizeBody(Body):
    """`POST /tokenize`."""

    model: _ModelName = None
    prompt: str = Field(description="the text; one that is exactly the name of a special token is it")
    add_special_tokens: bool = Field(True, description="false omits the tokens that begin every prompt, if any")


class DetokenizeBody(Body):
    """`POST /detokenize`."""

    model: _ModelName = None
    tokens: Annotated[list[_Count], _FIRST] = Field(description="token ids")
