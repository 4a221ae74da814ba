"""Reads `result.json` of Telegram Desktop: the export of one chat, or of an account."""

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

from minigpt.chat_logs.exported_chat import FORWARDED, SYSTEM, ExportedChat
from minigpt.chat_logs.json_cursor import JsonCursor

_START = re.compile(r'\s*\{\s*"(?:name|type|id|about|personal_information|chats|messages)"\s*:')
_MESSAGES = re.compile(r'"messages"\s*:\s*\[\s*(?=\{)')
_TYPE = re.compile(
    r'"type"\s*:\s*"(?:(?:personal|bot|secret)_chat|saved_messages|verify_codes|replies|(?:private|public)_(?:group|'
    r'supergroup|channel))"'
)
_BEFORE = 2000  # characters before the messages of a chat, which hold its name and type
_NO_NAME = "Deleted Account"  # as the app shows a sender whose name is null


def is_telegram(head: str, whole: Callable[[], str]) -> bool:
    """Whether a text that begins like this is the JSON of a Telegram export."""
    text = whole() if _START.match(head) else ""
    first = _MESSAGES.search(text)
    if first is None or not _TYPE.search(text, max(0, first.start() - _BEFORE), first.start()):
        return False
    try:
        message = JsonCursor(text, first.end()).value()
    except ValueError:
        return False
    return message.get("type") in ("message", "service") and {"id", "date"} <= message.keys()


def read_telegram(text: str, _name: str) -> Iterator[ExportedChat]:
    """The chats.

    Raises: ValueError if it is not JSON.
    """
    return _chats(JsonCursor(text), "")


def _chats(cursor: JsonCursor, account: str) -> Iterator[ExportedChat]:
    """The chats in an object, which is an export or a chat; `account` is the id of its owner, if that is known."""
    fields, chat, ids = dict[str, Any](), ExportedChat(), dict[str, str]()
    for key in cursor.object_keys():
        if key in ("chats", "left_chats"):
            for part in cursor.object_keys():
                if part == "list":
                    for _ in cursor.elements():
                        yield from _chats(cursor, account)
                else:
                    cursor.value()
        elif key == "messages":
            for _ in cursor.elements():
                _add(chat, cursor.value(), ids)
        else:
            fields[key] = cursor.value()
            if key == "personal_information":
                account = f"user{fields[key].get('user_id')}"
    if chat.said or chat.dropped:
        chat.owner = ids.get(account, "")
        others = [name for each, name in ids.items() if each != f"user{fields.get('id')}"]
        if not account and fields.get("type") == "personal_chat" and len(others) == 1 < len(ids):
            chat.owner = others[0]
        yield chat


def _add(chat: ExportedChat, message: Mapping[str, Any], ids: dict[str, str]) -> None:
    if message.get("type") != "message":
        chat.dropped[SYSTEM] += 1
        return
    sender, own_id = message.get("from") or _NO_NAME, message.get("from_id")
    ids[f"user{own_id}" if isinstance(own_id, int) else str(own_id)] = sender
    if message.get("forwarded_from") or message.get("saved_from"):
        chat.dropped[FORWARDED] += 1
        return
    text = message.get("text") or ""
    if isinstance(text, list):
        text = "".join(each if isinstance(each, str) else str(each.get("text", "")) for each in text)
    chat.add(sender, text, _time(message))


def _time(message: Mapping[str, Any]) -> float:
    """When a message was sent, in seconds."""
    try:
        return float(message.get("date_unixtime") or datetime.fromisoformat(message["date"]).timestamp())
    except (KeyError, TypeError, ValueError, OverflowError):
        return 0.0
