"""The OpenAPI file of the server, made from the types of its requests and answers."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from pydantic.json_schema import models_json_schema

from minigpt.server.request_bodies import ChatBody, CompletionBody, DetokenizeBody, InspectBody, TokenizeBody


class Answer(BaseModel):
    """A JSON object that the server sends. Fields with a default may be missing."""

    model_config = ConfigDict(extra="forbid", strict=True)


class ErrorReason(Answer):
    message: str
    type: str
    param: str | None
    code: str | None


class Error(Answer):
    error: ErrorReason


class Model(Answer):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelList(Answer):
    object: Literal["list"]
    data: list[Model]


class Usage(Answer):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Token(Answer):
    token: str
    bytes: list[int] | None
    logprob: float | None


class ScoredToken(Token):
    top_logprobs: list[Token]


class IdentifiedToken(Token):
    id: int


class ScoredIdentifiedToken(IdentifiedToken):
    top_logprobs: list[IdentifiedToken]


class Logprobs(Answer):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]
    content: list[ScoredIdentifiedToken] = []


class ChatLogprobs(Answer):
    content: list[ScoredToken]
    refusal: None


class Choice(Answer):
    index: int
    text: str
    logprobs: Logprobs | None
    finish_reason: Literal["stop", "length"] | None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] = []


class ChatMessage(Answer):
    role: str
    content: str


class ChatChoice(Answer):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"] | None


class Completion(Answer):
    id: str
    object: str
    created: int
    model: str
    choices: list[Choice]
    usage: Usage


class ChatCompletion(Answer):
    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class Tokens(Answer):
    tokens: list[int]
    count: int
    max_model_len: int


class Text(Answer):
    prompt: str


class TokenizerInfo(Answer):
    tokenizer_class: str
    tokenizer: str
    vocab_size: int
    model_max_length: int
    bos_token: str
    eos_token: str
    unk_token: str
    pad_token: str
    add_bos_token: bool
    chat_template: str | None


class Lens(Answer):
    """The logit lens of one layer after each position, in nats."""

    top: list[list[int]]
    logprobs: list[list[float | None]]
    entropy: list[float | None]
    actual: list[float | None]
    ranks: list[int]


class Norms(Answer):
    """By layer, where there are several, and position."""

    token: list[float | None]
    position: list[float | None]
    attention: list[list[float | None]]
    mlp: list[list[float | None]]
    residual: list[list[float | None]]


class Inspection(Answer):
    """`labels` are the texts of tokens, by the numbers in `tokens`, before which `skipped` others are not inspected.

    `attention` is base64 of little-endian 16-bit fractions: by layer and head the rows of the lower triangle.
    `layer`, `head` and `token` are shown first. `darkestBits` is the surprisal of the strongest color.
    """

    model: str
    skipped: int
    layers: int
    heads: int
    layer: int
    head: int
    token: int
    labels: list[str]
    tokens: list[int]
    bitsPerToken: float | None  # noqa: N815
    bitsPerByte: float | None  # noqa: N815
    attention: str
    lens: list[Lens]
    norms: Norms
    darkestBits: int  # noqa: N815


class Health(Answer):
    status: Literal["ok"]


_ERRORS = {
    400: "the request says something wrong",
    401: "the key is missing or wrong",
    403: "the Host or Origin header is not one of this server's",
    404: "there is no such model or path",
    405: "the path has another method",
    408: "the body came too slowly",
    413: "the body is too long",
    429: "too much work is waiting; Retry-After says when to try again",
    500: "the model could not generate",
    503: "the models are being loaded, or the server shuts down",
    504: "the request took too long",
}
_ALWAYS = (401, 403, 405)
_BODY = (400, 404, 408, 413, 503)
_GENERATION = (*_BODY, 429, 500, 504)
_TOKENS = (*_BODY, 429, 504)
# Without a type: OpenAPI 3.1 does not say whether the schema of a stream describes its text or each of its events.
_STREAM = {"text/event-stream": {"schema": {"description": "one `data:` line for each piece"}}}
_MODEL_IN_PATH = {"name": "model", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
_MODEL_IN_QUERY = {"name": "model", "in": "query", "required": False, "schema": {"type": "string"}}

# Path, its body if it is sent one, what it answers, the errors it may have, and what it does.
_OPERATIONS: tuple[tuple[str, type[BaseModel] | None, type[Answer] | str, tuple[int, ...], str], ...] = (
    ("/v1/completions", CompletionBody, Completion, _GENERATION, "Continue or score prompts"),
    ("/v1/chat/completions", ChatBody, ChatCompletion, _GENERATION,
     "Answer in a conversation, with models that have a chat template"),
    ("/v1/models", None, ModelList, (503,), "List the models"),
    ("/v1/models/{model}", None, Model, (404, 503), "Describe a model"),
    ("/tokenize", TokenizeBody, Tokens, _TOKENS, "Encode a text"),
    ("/detokenize", DetokenizeBody, Text, _TOKENS, "Decode token ids"),
    ("/tokenizer_info", None, TokenizerInfo, (404, 503), "Describe a tokenizer"),
    ("/inspect", InspectBody, Inspection, _TOKENS,
     "Show the attention weights, logit lens and norms of the end of a text"),
    ("/report", None, "text/html", (404, 429, 503, 504),
     "Show the report of the run that trained a model, as an HTML page"),
    ("/health", None, Health, (503,), "Say whether the models are loaded"),
    ("/metrics", None, "text/plain", (), "Count requests, tokens and seconds, for Prometheus"),
)  # fmt: skip


def openapi(version: str) -> dict[str, Any]:
    """The OpenAPI 3.1 description of the server. The server checks bodies by the same types."""
    types = {kind for _, body, answer, *_ in _OPERATIONS for kind in (body, answer)} | {Error}
    models: list[tuple[type[BaseModel], Literal["validation"]]]
    models = [(kind, "validation") for kind in types if isinstance(kind, type)]
    references, definitions = models_json_schema(models, ref_template="#/components/schemas/{model}")

    def content(kind: type[BaseModel] | str) -> dict[str, Any]:
        if isinstance(kind, str):
            return {kind: {"schema": {"type": "string"}}}
        return {"application/json": {"schema": references[kind, "validation"]}}

    paths: dict[str, Any] = {}
    for path, body, answer, errors, summary in _OPERATIONS:
        streams = _STREAM if body in (CompletionBody, ChatBody) else {}
        responses = {"200": {"description": "the answer", "content": {**content(answer), **streams}}}
        for status in sorted({*errors, *_ALWAYS}):
            responses[str(status)] = {"description": _ERRORS[status], "content": content(Error)}
        operation: dict[str, Any] = {"summary": summary, "responses": responses}
        if path in ("/report", "/tokenizer_info"):
            operation["parameters"] = [_MODEL_IN_QUERY]
        elif "{model}" in path:
            operation["parameters"] = [_MODEL_IN_PATH]
        if body is not None:
            operation["requestBody"] = {"required": True, "content": content(body)}
        paths[path] = {"get" if body is None else "post": operation}
    return {
        "openapi": "3.1.0",
        "info": {"title": "minigpt", "version": version, "description": "GPT-2 models with OpenAI's completions API"},
        "paths": paths,
        "components": {
            "schemas": definitions["$defs"],
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }
