"""The OpenAPI file of the server."""

from collections.abc import Mapping
from typing import Any

from minigpt.server.request_schemas import CHAT_COMPLETION, COMPLETION, DETOKENIZE, INSPECT, TOKENIZE

_NULLABLE_STRING = {"type": ["string", "null"]}
_INTEGER = {"type": "integer"}


def _object(properties: Mapping[str, Any], *optional: str) -> dict[str, Any]:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": dict(properties), "required": required, "additionalProperties": False}


_ERROR = _object(
    {
        "error": _object(
            {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": _NULLABLE_STRING,
                "code": _NULLABLE_STRING,
            }
        )
    }
)
_MODEL = _object(
    {
        "id": {"type": "string"},
        "object": {"type": "string", "enum": ["model"]},
        "created": _INTEGER,
        "owned_by": {"type": "string"},
        "max_model_len": _INTEGER,
    }
)
_USAGE = _object({"prompt_tokens": _INTEGER, "completion_tokens": _INTEGER, "total_tokens": _INTEGER})
_IDS = {"type": "array", "items": _INTEGER}
_WITH_ID = {
    "id": _INTEGER,
    "token": {"type": "string"},
    "bytes": {"type": ["array", "null"], "items": _INTEGER},
    "logprob": {"type": ["number", "null"]},
}
_LOGPROBS = {
    "anyOf": [
        _object(
            {
                "tokens": {"type": "array", "items": {"type": "string"}},
                "token_logprobs": {"type": "array", "items": {"type": ["number", "null"]}},
                "top_logprobs": {
                    "type": "array",
                    "items": {"type": ["object", "null"], "additionalProperties": {"type": "number"}},
                },
                "text_offset": _IDS,
                "content": {
                    "type": "array",
                    "items": _object({**_WITH_ID, "top_logprobs": {"type": "array", "items": _object(_WITH_ID)}}),
                },
            },
            "content",
        ),
        {"type": "null"},
    ]
}
_SCORED = {name: schema for name, schema in _WITH_ID.items() if name != "id"}
_CHAT_LOGPROBS = {
    "anyOf": [
        _object(
            {
                "content": {
                    "type": "array",
                    "items": _object({**_SCORED, "top_logprobs": {"type": "array", "items": _object(_SCORED)}}),
                },
                "refusal": {"type": "null"},
            }
        ),
        {"type": "null"},
    ]
}
_FINISH_REASON = {"type": ["string", "null"], "enum": ["stop", "length", None]}
_HEADER = {
    "id": {"type": "string"},
    "object": {"type": "string"},
    "created": _INTEGER,
    "model": {"type": "string"},
}
_COMPLETION_ANSWER = _object(
    {
        **_HEADER,
        "choices": {
            "type": "array",
            "items": _object(
                {
                    "index": _INTEGER,
                    "text": {"type": "string"},
                    "logprobs": _LOGPROBS,
                    "finish_reason": _FINISH_REASON,
                    "prompt_token_ids": {**_IDS, "type": ["array", "null"]},
                    "token_ids": _IDS,
                },
                "prompt_token_ids",
                "token_ids",
            ),
        },
        "usage": _USAGE,
    }
)
_CHAT_ANSWER = _object(
    {
        **_HEADER,
        "choices": {
            "type": "array",
            "items": _object(
                {
                    "index": _INTEGER,
                    "message": _object({"role": {"type": "string"}, "content": {"type": "string"}}),
                    "logprobs": _CHAT_LOGPROBS,
                    "finish_reason": _FINISH_REASON,
                }
            ),
        },
        "usage": _USAGE,
    }
)
_TOKENIZER_INFO = _object(
    {
        "tokenizer_class": {"type": "string"},
        "tokenizer": {"type": "string"},
        "vocab_size": _INTEGER,
        "model_max_length": _INTEGER,
        "bos_token": {"type": "string"},
        "eos_token": {"type": "string"},
        "unk_token": {"type": "string"},
        "pad_token": {"type": "string"},
        "add_bos_token": {"type": "boolean"},
        "chat_template": _NULLABLE_STRING,
    }
)

_NUMBER = {"type": ["number", "null"]}
_TABLE = {"type": "array", "items": {"type": "array", "items": _NUMBER}}  # by layer and position
_NUMBERS = {"type": "array", "items": _NUMBER}
_INSPECTION = _object(
    {
        "model": {"type": "string"},
        "skipped": {**_INTEGER, "description": "tokens before the inspected ones"},
        "layers": _INTEGER,
        "heads": _INTEGER,
        "layer": _INTEGER,
        "head": _INTEGER,
        "labels": {"type": "array", "items": {"type": "string"}, "description": "the texts of tokens, by number"},
        "tokens": {**_IDS, "description": "the inspected tokens, as numbers in `labels`"},
        "bitsPerToken": _NUMBER,
        "bitsPerByte": _NUMBER,
        "attention": {
            "type": "string",
            "description": "base64 of little-endian 16-bit fractions: by layer and head the rows of the lower triangle",
        },
        "lens": {
            "type": "array",
            "items": _object(
                {
                    "top": {"type": "array", "items": _IDS},
                    "logprobs": _TABLE,
                    "entropy": _NUMBERS,
                    "actual": _NUMBERS,
                    "ranks": _IDS,
                }
            ),
            "description": "by layer, the logit lens after each position; units: nats",
        },
        "norms": _object(
            {"token": _NUMBERS, "position": _NUMBERS, "attention": _TABLE, "mlp": _TABLE, "residual": _TABLE}
        ),
        "darkestBits": {**_INTEGER, "description": "surprisal of the darkest color"},
    }
)

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


def _json(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _operation(
    summary: str,
    answer: Mapping[str, Any],
    errors: tuple[int, ...] = (),
    *,
    body: str | None = None,
    parameters: tuple[Mapping[str, Any], ...] = (),
) -> dict[str, Any]:
    """One operation; `answer` is the content of the response 200, `body` the name of the request's schema."""
    responses = {"200": {"description": "the answer", "content": answer}}
    for status in sorted({*errors, *_ALWAYS}):
        responses[str(status)] = {
            "description": _ERRORS[status],
            "content": _json({"$ref": "#/components/schemas/Error"}),
        }
    operation: dict[str, Any] = {"summary": summary, "responses": responses}
    if parameters:
        operation["parameters"] = list(parameters)
    if body is not None:
        operation["requestBody"] = {"required": True, "content": _json({"$ref": f"#/components/schemas/{body}"})}
    return operation


# Without a type: OpenAPI 3.1 does not say whether the schema of a stream describes its text or each of its events.
_EVENTS = {"text/event-stream": {"schema": {"description": "one `data:` line for each piece"}}}
_PAGE = {"text/html": {"schema": {"type": "string"}}}
_TEXT = {"text/plain": {"schema": {"type": "string"}}}
_MODEL_IN_PATH = {"name": "model", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
_MODEL_IN_QUERY = {"name": "model", "in": "query", "required": False, "schema": {"type": "string"}}


def openapi(version: str) -> dict[str, Any]:
    """The OpenAPI 3.1 description of the server. The server checks bodies by the same schemas."""
    models = _object({"object": {"type": "string", "enum": ["list"]}, "data": {"type": "array", "items": _MODEL}})
    tokens = _object({"tokens": {"type": "array", "items": _INTEGER}, "count": _INTEGER, "max_model_len": _INTEGER})
    return {
        "openapi": "3.1.0",
        "info": {"title": "minigpt", "version": version, "description": "GPT-2 models with OpenAI's completions API"},
        "paths": {
            "/v1/completions": {
                "post": _operation(
                    "Continue or score prompts",
                    {**_json(_COMPLETION_ANSWER), **_EVENTS},
                    _GENERATION,
                    body="Completion",
                )
            },
            "/v1/chat/completions": {
                "post": _operation(
                    "Answer in a conversation, with models that have a chat template",
                    {**_json(_CHAT_ANSWER), **_EVENTS},
                    _GENERATION,
                    body="ChatCompletion",
                )
            },
            "/v1/models": {"get": _operation("List the models", _json(models), (503,))},
            "/v1/models/{model}": {
                "get": _operation("Describe a model", _json(_MODEL), (404, 503), parameters=(_MODEL_IN_PATH,))
            },
            "/tokenize": {"post": _operation("Encode a text", _json(tokens), _BODY, body="Tokenize")},
            "/detokenize": {
                "post": _operation(
                    "Decode token ids", _json(_object({"prompt": {"type": "string"}})), _BODY, body="Detokenize"
                )
            },
            "/tokenizer_info": {
                "get": _operation(
                    "Describe a tokenizer", _json(_TOKENIZER_INFO), (404, 503), parameters=(_MODEL_IN_QUERY,)
                )
            },
            "/inspect": {
                "post": _operation(
                    "Show the attention weights, logit lens and norms of the end of a text",
                    _json(_INSPECTION),
                    (*_BODY, 429, 504),
                    body="Inspect",
                )
            },
            "/report": {
                "get": _operation(
                    "Show the report of the run that trained a model, as an HTML page",
                    _PAGE,
                    (404, 429, 503, 504),
                    parameters=(_MODEL_IN_QUERY,),
                )
            },
            "/health": {
                "get": _operation(
                    "Say whether the models are loaded",
                    _json(_object({"status": {"type": "string", "enum": ["ok"]}})),
                    (503,),
                )
            },
            "/metrics": {"get": _operation("Count requests, tokens and seconds, for Prometheus", _TEXT)},
        },
        "components": {
            "schemas": {
                "Error": _ERROR,
                "Completion": COMPLETION,
                "ChatCompletion": CHAT_COMPLETION,
                "Inspect": INSPECT,
                "Tokenize": TOKENIZE,
                "Detokenize": DETOKENIZE,
            },
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }
