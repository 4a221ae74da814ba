"""Conversations among the records of a text: the transcripts that a model is trained on, and the notes on them."""

import json
from collections.abc import Collection, Iterable, Sequence

from minigpt.chat_logs.chat_corpus import ChatCorpus
from minigpt.chat_logs.chat_log import (
    CONVERSATION_KEYS,
    WEIGHT_KEYS,
    conversation_fields,
    is_pair,
    read_conversation,
    record_conversation,
)
from minigpt.chat_logs.exports import export_app, export_notes
from minigpt.chat_logs.json_files import first_value_keys, json_form, may_be_json
from minigpt.chat_logs.transcript import (
    CHAT_TEMPLATE,
    TranscriptTracker,
    count_unlearned,
    transcript,
    unmarked,
)
from minigpt.data.find_files import shown
from minigpt.data.records import Record, RecordFields, json_lines
from minigpt.data.source_files import SourceFile, open_source
from minigpt.errors import DataError


class ChatLogs:
    """What the seams "conversations" and "token_reader" ask for; see `Conversations` and `TokenReader` in data/."""

    chat_template = CHAT_TEMPLATE
    unmarked = staticmethod(unmarked)
    count_unlearned = staticmethod(count_unlearned)
    tracker = TranscriptTracker
    open = staticmethod(ChatCorpus.open)

    def fields(self, keys: Collection[str], key: str) -> RecordFields:
        """The fields that are read of records with these keys."""
        fields = conversation_fields(keys, key)
        return RecordFields(fields, is_pair(fields), [each for each in WEIGHT_KEYS if each in keys])

    def read(self, row: object, key: str, location: str) -> Record | None:
        """The record in a JSON value; None if it is no object with a text or a conversation.

        A conversation is a list of messages: under `key`, "messages" or "conversations", or the whole value; or it is a
        pair of a question and an answer.
        Raises: DataError, which begins with `location`.
        """
        if isinstance(row, list):
            return Record(transcript(read_conversation(row, location)), is_conversation=True)
        fields = conversation_fields(row, key) if isinstance(row, dict) else []
        if not isinstance(row, dict) or not fields:
            return None
        for mark in WEIGHT_KEYS:
            if row.get(mark) is False or (mark == "weight" and row.get(mark) == 0):
                raise DataError(
                    f"{location} has the {mark} {json.dumps(row[mark])}, which can be given to messages only; remove "
                    "the record, or give each of its messages the weight 0"
                )
        value = row[fields[0]]
        if isinstance(value, list) or is_pair(fields):
            return Record(transcript(record_conversation(row, fields, location)), is_conversation=True)
        if not isinstance(value, str):
            raise DataError(
                f"{location}: the value of {fields[0]!r} must be a string or a list of messages, not "
                f"{json.dumps(value)[:40]}"
            )
        return Record(value, is_conversation=False)

    def notes(self, files: Sequence[SourceFile], key: str) -> list[str]:
        """Sentences on exports, on `.json` files that are read as plain text, and on conversations that are not read.

        Raises: DataError as `scan`; ConfigError as `export_notes`.
        """
        texts = [each for each in files if may_be_json(each) and not export_app(each) and not json_form(each, key)]
        markup = [each.name for each in texts if each.stat().st_size]
        several = f"{len(markup):,} files, such as" if len(markup) > 1 else "a file,"
        notes = [f"read as plain text, JSON markup included: {several} {markup[0]}"] if markup else []
        return export_notes(files) + notes + _unread_conversations(files, key)

    def check(self, n_unlearned: int, *, knows_speakers: bool) -> None:
        """Raises DataError for messages that are read without being learned, where the speakers are not known."""
        if n_unlearned and not knows_speakers:
            raise DataError(
                f"messages with weight 0 ({n_unlearned:,} here) can be read without being learned only where "
                "every document is a conversation, and not in a mix; train on the chat logs alone, or remove these "
                "messages"
            )

    def find(self, *_: object) -> None:
        """Nothing: conversations are among the documents of a text."""

    def has_tokens(self, _: str) -> bool:
        """Whether a source names tokens: none does."""
        return False


def _first_keys(file: SourceFile, key: str) -> Collection[str]:
    """The keys of the first record in a file."""
    if (reader := file.reader) is not None:
        return () if reader.keys is None else reader.keys(file, key)
    if not file.is_json:
        return ()
    with open_source(file) as stream:
        return first_value_keys(json_lines(file.name, stream, file.decoding.errors))


def _unread_conversations(files: Iterable[SourceFile], text_key: str) -> list[str]:
    """Sentences on the conversations of records that also have a text or another conversation, which is read, judged by
    the first record of each file.
    """
    found: dict[tuple[str, str, str], list[str]] = {}
    for file in files:
        keys = _first_keys(file, text_key)
        read = conversation_fields(keys, text_key)
        other = conversation_fields([each for each in keys if each not in read])
        is_chosen = read[:1] == [text_key] and (text_key in CONVERSATION_KEYS or is_pair(read))
        if read and other and not is_chosen:
            found.setdefault((_described(read), _described(other), other[0]), []).append(file.name)
    return [
        f"{shown(names)}: each record has {read}, which is read, and {other}, which is not; to read the conversations "
        f"instead, give --text-key {key}"
        for (read, other, key), names in found.items()
    ]


def _described(fields: Sequence[str]) -> str:
    return " with ".join(map(repr, fields[:2] if is_pair(fields) else fields[:1]))


reader = ChatLogs()
