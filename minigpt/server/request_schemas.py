"""The JSON schemas of the request bodies: the server checks requests by them, and the OpenAPI file shows them."""

from typing import Any, Final

from minigpt.config import SamplingConfig
from minigpt.settings import annotations_of, value_types

MOST_LOGPROBS: Final = 20
MOST_STOPS: Final = 16
MOST_SAMPLES: Final = 128
MOST_PROMPTS: Final = 10_000  # more are refused before any of them is read
_LARGEST_ID: Final = 2**31
_LONGEST_NGRAM: Final = 100  # tokens
_MOST_BAD_WORDS: Final = 100
_LONGEST_BAD_WORD: Final = 200  # characters
_LONGEST_STOP: Final = 200  # characters
# Fields of SamplingConfig that a request may have under the same name; OpenAI names the others.
OWN_SAMPLING: Final = (
    "top_k", "min_p", "typical_p", "repetition_penalty", "no_repeat_ngram_size", "min_new_tokens", "bad_words",
    "until", "context", "allow_invalid_utf8", "token_healing",
)  # fmt: skip
# Fields of a message that clients send back as they got or stored them.
_IGNORED_IN_MESSAGES: Final = ("id", "reasoning_content")


def _field(kind: str, description: str, **rules: Any) -> dict[str, Any]:
    return {"type": [kind, "null"], "description": description, **rules}


def _own_field(name: str) -> dict[str, Any]:
    """The schema of a setting of SamplingConfig, with its help text and bounds."""
    metadata = SamplingConfig.__dataclass_fields__[name].metadata
    (kind,) = value_types(annotations_of(SamplingConfig)[name])
    bounds = {"min": "minimum", "max": "maximum", "above": "exclusiveMinimum"}
    rules = {ours: metadata["bounds"][key] for key, ours in bounds.items() if metadata["bounds"][key] is not None}
    if name == "top_k":
        return _field("integer", f"{metadata['help']}; 0 and -1 mean all tokens", minimum=-1, maximum=_LARGEST_ID)
    if kind is int:
        most = _LONGEST_NGRAM if name == "no_repeat_ngram_size" else _LARGEST_ID
        return _field("integer", metadata["help"], maximum=most, **rules)
    if kind is float:
        return _field("number", metadata["help"], **rules)
    if kind is bool:
        return _field("boolean", metadata["help"])
    if name == "bad_words":
        words = {"type": "string", "minLength": 1, "maxLength": _LONGEST_BAD_WORD}
        return _field("array", metadata["help"], items=words, maxItems=_MOST_BAD_WORDS)
    if name == "until":
        return _field("string", metadata["help"], enum=["sentence", "paragraph", "line", None])
    return _field("string", f"{metadata['help']}; without it a text must fit into the context", maxLength=40)


_IDS: Final = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": _LARGEST_ID}, "minItems": 1}
_STOP: Final = {"type": "string", "minLength": 1, "maxLength": _LONGEST_STOP}
_SAMPLING: Final[dict[str, Any]] = {
    "model": _field("string", "name of the model; without it the first one that is served", maxLength=200),
    "max_tokens": _field("integer", "maximum number of tokens to generate", minimum=0, maximum=_LARGEST_ID),
    "temperature": _field("number", "sampling temperature: 0 is greedy, higher is more random", minimum=0, maximum=2),
    "top_p": _field(
        "number", "sample only from the most likely tokens with this total probability", exclusiveMinimum=0, maximum=1
    ),
    "n": _field("integer", "number of texts to return for each prompt", minimum=1, maximum=MOST_SAMPLES),
    "stop": {
        "anyOf": [
            _STOP,
            {"type": "array", "items": _STOP, "maxItems": MOST_STOPS},
            {"type": "null"},
        ],
        "description": "texts to stop before",
    },
    "seed": _field(
        "integer",
        "random seed: the same seed gives the same text, whatever else the server does",
        minimum=-(2**63),
        maximum=2**63 - 1,
    ),
    "presence_penalty": _field("number", "subtracted from a token's score if it was generated", minimum=-2, maximum=2),
    "frequency_penalty": _field(
        "number", "subtracted from a token's score for each time it was generated", minimum=-2, maximum=2
    ),
    "logit_bias": {
        "type": ["object", "null"],
        "description": "numbers from -100 to 100 to add to the scores of tokens, by the token's id",
        "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
        "maxProperties": 1024,
    },
    "stream": _field("boolean", "send the text in pieces, as server-sent events"),
    "stream_options": {
        "type": ["object", "null"],
        "properties": {
            "include_usage": _field("boolean", "count the tokens in a last piece"),
            "include_obfuscation": _field("boolean", "accepted and ignored"),
        },
        "additionalProperties": False,
    },
    # What OpenAI's clients send to bill, route or cache a request.
    **{
        name: _field("string", "accepted and ignored", maxLength=1000)
        for name in ("user", "safety_identifier", "service_tier", "prompt_cache_key", "prompt_cache_retention")
    },
    **{name: _field("object", "accepted and ignored") for name in ("metadata", "prompt_cache_options")},
    **{name: _own_field(name) for name in OWN_SAMPLING},
}

COMPLETION: Final[dict[str, Any]] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        **_SAMPLING,
        "prompt": {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MOST_PROMPTS},
                _IDS,
                {"type": "array", "items": _IDS, "minItems": 1, "maxItems": MOST_PROMPTS},
                {"type": "null"},
            ],
            "description": "one text, several texts, the token ids of one text, or those of several; without it a new "
            "document begins. A prompt that is exactly the name of a special token is this token",
        },
        "best_of": _field(
            "integer",
            "number of texts to generate for each prompt, of which the n most likely per token are returned",
            minimum=1,
            maximum=MOST_SAMPLES,
        ),
        "special_tokens": _own_field("special_tokens"),
        "echo": _field("boolean", "return the prompt before the text"),
        "logprobs": _field(
            "integer",
            "give the log-probability of each token, and this many of the most likely tokens; with echo of the "
            "prompt's tokens, too",
            minimum=0,
            maximum=MOST_LOGPROBS,
        ),
        "return_token_ids": _field(
            "boolean",
            "give the ids of the prompt's tokens and of the text's; with logprobs also the id and the bytes of each "
            "token and of its alternatives",
        ),
        "suffix": _field("string", "refused: GPT-2 continues a text, it cannot fill a gap"),
    },
}

CHAT_COMPLETION: Final[dict[str, Any]] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["messages"],
    "properties": {
        **_SAMPLING,
        "max_tokens": {**_SAMPLING["max_tokens"], "minimum": 1},
        "messages": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["role", "content"],
                "properties": {
                    "role": {"type": "string", "enum": ["system", "developer", "user", "assistant"]},
                    "content": {
                        "anyOf": [
                            {"type": "string"},
                            {
                                "type": "array",
                                "items": {
                                    "type": "object",
                                    "required": ["type"],
                                    "properties": {"type": {"type": "string"}, "text": {"type": "string"}},
                                },
                            },
                        ],
                        "description": "a text, or parts of the type text, which are joined",
                    },
                    "name": _field("string", "the name of who speaks, for chat templates that show it"),
                    **{name: _field("string", "accepted and ignored") for name in _IGNORED_IN_MESSAGES},
                    "annotations": _field("array", "accepted and ignored", items={"type": "object"}),
                    "tool_calls": _field("array", "refused unless empty", items={"type": "object"}, maxItems=0),
                },
                "additionalProperties": False,
            },
            "description": "the conversation so far",
        },
        "max_completion_tokens": _field(
            "integer",
            "maximum number of tokens to generate; the newer name of max_tokens",
            minimum=1,
            maximum=_LARGEST_ID,
        ),
        "response_format": {
            "type": ["object", "null"],
            "required": ["type"],
            "properties": {"type": {"type": "string", "enum": ["text"]}},
            "description": "accepted if it asks for text",
        },
        "logprobs": _field("boolean", "give the log-probability of each token of the answer"),
        "top_logprobs": _field(
            "integer", "with logprobs, give this many of the most likely tokens", minimum=0, maximum=MOST_LOGPROBS
        ),
        "store": _field("boolean", "refused if true: the server stores no conversations"),
        "tools": _field("array", "refused unless empty: the model cannot call tools", items={"type": "object"}),
        "functions": _field("array", "refused unless empty: the older name of tools", items={"type": "object"}),
        "tool_choice": _field("string", "accepted and ignored", enum=["none", "auto", None]),
        "function_call": _field("string", "accepted and ignored", enum=["none", "auto", None]),
        "modalities": _field("array", "accepted if it asks for text", items={"type": "string", "enum": ["text"]}),
        "parallel_tool_calls": _field("boolean", "accepted and ignored"),
        "reasoning_effort": _field("string", "accepted and ignored"),
        "verbosity": _field("string", "accepted and ignored"),
        "prediction": _field("object", "accepted and ignored: the answer is the same without"),
    },
}

INSPECT: Final[dict[str, Any]] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["prompt"],
    "properties": {
        "model": _SAMPLING["model"],
        "prompt": {
            "anyOf": [{"type": "string", "minLength": 1, "maxLength": 100_000}, {**_IDS, "maxItems": 100_000}],
            "description": "a text, or its token ids; its end is inspected if it is too long",
        },
        "top": _field("integer", "number of the most likely tokens at each position", minimum=1, maximum=MOST_LOGPROBS),
    },
}

TOKENIZE: Final[dict[str, Any]] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["prompt"],
    "properties": {
        "model": _SAMPLING["model"],
        "prompt": {"type": "string", "description": "the text; one that is exactly the name of a special token is it"},
        "add_special_tokens": _field("boolean", "false omits the tokens that begin every prompt, if any"),
    },
}

DETOKENIZE: Final[dict[str, Any]] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["tokens"],
    "properties": {
        "model": _SAMPLING["model"],
        "tokens": {**_IDS, "minItems": 0, "description": "token ids"},
    },
}
