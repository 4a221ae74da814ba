"""Reads `conversations.json` of a ChatGPT export: of each conversation, the branch that was open last."""

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from minigpt.chat_logs.exported_chat import MEDIA, SYSTEM, ExportedChat
from minigpt.chat_logs.json_cursor import JsonCursor
from minigpt.chat_logs.transcript import ROLES

_START = re.compile(r"\s*\[\s*\{")
_CITATION = re.compile("\ue200[^\ue201]*\ue201|\u3010[^\u3010\u3011]*\u2020[^\u3010\u3011]*\u3011")
_WRITTEN = ("text", "multimodal_text")  # the types of contents that a person or the model wrote; others are of tools
_TRIED = 5  # conversations, of which one must have messages


def is_chatgpt(head: str, whole: Callable[[], str]) -> bool:
    """Whether a text that begins like this is the JSON of a ChatGPT export."""
    if not (_START.match(head) and '"mapping"' in head):
        return False
    cursor = JsonCursor(whole())
    try:
        return any(_nodes(cursor.value()) for _ in islice(cursor.elements(), _TRIED))
    except ValueError:
        return False


def read_chatgpt(text: str, _name: str) -> Iterator[ExportedChat]:
    """The conversations; a text that was joined of several files has an array of each.

    Raises: ValueError if it is not JSON.
    """
    cursor = JsonCursor(text)
    while not cursor.at_end():
        for _ in cursor.elements():
            conversation = cursor.value()
            chat = ExportedChat(has_roles=True)
            for message in _branch(conversation):
                _add(chat, message)
            yield chat


def _nodes(conversation: object) -> Mapping[str, Mapping[str, Any]]:
    """The tree of a conversation; empty for another value."""
    nodes = conversation.get("mapping") if isinstance(conversation, dict) else None
    if not isinstance(nodes, dict):
        return {}
    is_tree = all(isinstance(node, dict) and "parent" in node and "message" in node for node in nodes.values())
    return nodes if is_tree else {}


def _branch(conversation: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The messages from the root of the tree to the current node, or to the last one without children."""
    nodes = _nodes(conversation)
    leaves = [name for name, node in nodes.items() if not node.get("children")]
    name = str(conversation.get("current_node"))
    name = name if name in nodes else next(reversed(leaves), "")
    found: dict[str, Mapping[str, Any]] = {}
    while name in nodes and name not in found:
        found[name] = nodes[name]
        name = str(nodes[name]["parent"])
    return [node["message"] for node in reversed(found.values()) if isinstance(node["message"], dict)]


def _add(chat: ExportedChat, message: Mapping[str, Any]) -> None:
    author, content, metadata = (message.get(key) or {} for key in ("author", "content", "metadata"))
    role = author.get("role")
    is_hidden = metadata.get("is_visually_hidden_from_conversation") or message.get("recipient", "all") != "all"
    if role not in ROLES or is_hidden or content.get("content_type") not in _WRITTEN:
        chat.dropped[SYSTEM] += 1
        return
    parts = [each.get("text") if isinstance(each, dict) else each for each in content.get("parts") or ()]
    text = "\n".join(each for each in parts if isinstance(each, str))
    chat.add(role, _CITATION.sub("", text), otherwise=SYSTEM if role == "system" else MEDIA)
