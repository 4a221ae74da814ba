"""Reads the conversations of a chat log: OpenAI's `messages`, ShareGPT's `conversations`, or a bare list."""

from collections.abc import Mapping, Sequence
from typing import Any

from minigpt.data.transcript import ROLES, Message, Role
from minigpt.errors import DataError
from minigpt.tokenizer.display import one_line
from minigpt.tokenizer.vocabulary import END_OF_TEXT

CONVERSATION_KEYS = ("messages", "conversations")

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
    weight = value.get("weight")
    if weight not in (None, 0, 1):
        raise DataError(f"{location} has the weight {_shown(weight)}; it must be 0 (read only) or 1 (learned)")
    return Message(role, content, is_learned=weight != 0)


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
