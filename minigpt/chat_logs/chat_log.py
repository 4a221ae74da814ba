"""Reads the conversations of a chat log: OpenAI's `messages`, ShareGPT's `conversations`, bare lists, and pairs."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from minigpt.chat_logs.transcript import ROLES, Message, Role
from minigpt.errors import DataError
from minigpt.tokenizer.display import one_line
from minigpt.tokenizer.vocabulary import END_OF_TEXT

CONVERSATION_KEYS = ("messages", "conversations")
WEIGHT_KEYS = ("weight", "train", "loss")  # OpenAI's, and axolotl's and others' with true or false
# A question and its answer: Alpaca's and Dolly's, OpenAI's older and TRL's, and those of data sets of questions.
_PAIRS = (
    ("instruction", "output"),
    ("instruction", "response"),
    ("prompt", "completion"),
    ("prompt", "response"),
    ("question", "answer"),
    ("question", "response"),
    ("input", "output"),
)
_INPUTS = ("input", "context")  # what the question of a pair is about: Alpaca's and Dolly's
_SYSTEM_KEYS = ("system", "system_prompt")
_HISTORY = "history"  # earlier pairs, as LLaMA-Factory has them

_ALIASES: Mapping[str, Role] = {
    **{role: role for role in ROLES},
    "developer": "system",  # OpenAI's newer name
    "human": "user",  # ShareGPT's names
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
}
_ROLE_KEYS, _CONTENT_KEYS = ("role", "from"), ("content", "value")
_LONGEST_SHOWN = 40  # characters of a value in an error


def conversation_fields(keys: Collection[str], key: str | None = None) -> list[str]:
    """The fields of a record with these keys that make its conversation; the first is `key`, if that is given.

    Empty for a record without a conversation. The value of the first may be a text. A `key` that is the question of a
    pair names the pair.
    """
    named = next((pair for pair in _PAIRS if pair[0] == key and all(each in keys for each in pair)), ())
    first = next((each for each in (key, *CONVERSATION_KEYS) if each is not None and each in keys), None)
    if first is not None and not named:
        return [first, *(each for each in _SYSTEM_KEYS if each in keys)]
    pair = named or next((pair for pair in _PAIRS if all(each in keys for each in pair)), ())
    others = (each for each in (*_INPUTS, _HISTORY, *_SYSTEM_KEYS) if each in keys and each not in pair)
    return [*pair, *others] if pair else []


def is_pair(fields: Sequence[str]) -> bool:
    """Whether these `conversation_fields` are of a question and its answer."""
    return tuple(fields[:2]) in _PAIRS


def is_message(value: object) -> bool:
    """Whether a JSON value looks like a message of a conversation."""
    return isinstance(value, dict) and any(key in value for key in _ROLE_KEYS)


def record_conversation(row: Mapping[str, Any], fields: Sequence[str], location: str) -> tuple[Message, ...]:
    """The conversation in these `conversation_fields` of a record; errors begin with `location`.

    Raises: DataError as `read_conversation`, and for a record with two different instructions of the system.
    """
    given = _pairs(row, fields, location) if is_pair(fields) else row[fields[0]]
    messages = read_conversation(given, location)
    key = next((each for each in _SYSTEM_KEYS if each in fields and _is_given(row[each])), None)
    if key is None:
        return messages
    system = _message({"role": "system", "content": row[key]}, f"{location}, field {key!r}")
    if messages[0].role != "system":
        return system, *messages
    if messages[0].content.strip() != system.content.strip():
        raise DataError(f"{location} has two instructions, in the field {key!r} and in message 1; remove one of them")
    return messages


def _pairs(row: Mapping[str, Any], fields: Sequence[str], location: str) -> list[Any]:
    """The messages of a question and its answer, each a text or a list of messages, after those of its history."""
    question, answer = (row[each] for each in fields[:2])
    if inputs := [row[each] for each in _INPUTS if each in fields[2:] and _is_given(row[each])]:
        question = "\n".join(_text(each, {}, f"{location}, message 1") for each in (question, *inputs))
    messages: list[Any] = []
    history = row[_HISTORY] if _HISTORY in fields and row[_HISTORY] else []
    for pair in [*(history if isinstance(history, list) else [history]), [question, answer]]:
        if not (isinstance(pair, list) and len(pair) == 2):
            raise DataError(f"{location}: its history must be pairs of a question and an answer, not {_shown(pair)}")
        for role, content in zip(("user", "assistant"), pair, strict=True):
            is_conversation = isinstance(content, list) and all(map(is_message, content))
            messages += content if is_conversation else [{"role": role, "content": content}]
    return messages


def _is_given(value: object) -> bool:
    return value is not None and not (isinstance(value, str) and not value.strip())


def read_conversation(value: Sequence[object], location: str) -> tuple[Message, ...]:
    """The messages of a conversation, as JSON has them; errors begin with `location`.

    Raises: DataError for an empty conversation, and for a message without a known role and a text.
    """
    if not value:
        raise DataError(f"{location} has an empty conversation; remove the line")
    return tuple(_message(each, f"{location}, message {number}") for number, each in enumerate(value, 1))


def _message(value: object, location: str) -> Message:
    if not isinstance(value, dict):
        raise DataError(f'{location} must be an object such as {{"role": "user", "content": "..."}}')
    name = next((value[key] for key in _ROLE_KEYS if key in value), None)
    role = _ALIASES.get(name.lower()) if isinstance(name, str) else None
    if role is None:
        problem = "has no role" if name is None else f"has the unknown role {_shown(name)}"
        raise DataError(f"{location} {problem}; a role must be {', '.join(ROLES[:-1])} or {ROLES[-1]}")
    content = _text(next((value[key] for key in _CONTENT_KEYS if key in value), None), value, location)
    if END_OF_TEXT in content:
        raise DataError(f"{location} contains {END_OF_TEXT}, which ends a conversation; remove it from the message")
    weights = {key: value.get(key) for key in WEIGHT_KEYS}
    for key, weight in weights.items():
        if weight not in (None, 0, 1):
            what = f"the {key} {_shown(weight)}"
            values = "0 (read only) or 1 (learned)" if key == "weight" else "true (learned) or false (read only)"
            raise DataError(f"{location} has {what}; it must be {values}")
    return Message(role, content, is_learned=all(weight is None or weight != 0 for weight in weights.values()))


def _text(content: object, message: Mapping[str, Any], location: str) -> str:
    """The text of a message; several text parts are joined."""
    calls = any(message.get(key) for key in ("tool_calls", "function_call"))
    if calls and isinstance(content, str) and not content.strip():
        content = None
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_part(each, location) for each in content)
    if content is not None:
        raise DataError(f"{location}: its content must be a string, not {_shown(content)}")
    why = " but a tool call, which is not text" if calls else ""
    raise DataError(f"{location} has no content{why}; remove the line, or give the message a text")


def _part(part: object, location: str) -> str:
    kind, text = (part.get("type"), part.get("text")) if isinstance(part, dict) else (None, None)
    if kind == "text" and isinstance(text, str):
        return text
    what = f"of type {_shown(kind)}" if isinstance(kind, str) and kind != "text" else "that is not text"
    raise DataError(f"{location} has a part {what}; only text can be read, so remove the part or the line")


def _shown(value: object) -> str:
    text = one_line(repr(value))
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"
