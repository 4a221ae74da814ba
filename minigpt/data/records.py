"""Reads `.jsonl` files: each line is a JSON value with a text or a conversation, which becomes a transcript."""

import gzip
import json
from collections.abc import Iterator, Mapping
from io import BufferedReader
from itertools import islice
from typing import NamedTuple

from minigpt.bounded_reading import bounded_lines, parse_json
from minigpt.data.chat_log import CONVERSATION_KEYS, read_conversation
from minigpt.data.source_files import skip_bom, undecodable
from minigpt.data.transcript import transcript
from minigpt.errors import DataError
from minigpt.tokenizer.vocabulary import replace_surrogates


class Record(NamedTuple):
    """The text of one line, and whether it is the transcript of a conversation."""

    text: str
    is_conversation: bool


class JsonLine(NamedTuple):
    """A line with its number, counted from 1; its first byte, counted from 0; its bytes; and the value in it."""

    number: int
    start: int
    size: int
    value: object


def read_records(
    name: str, stream: BufferedReader | gzip.GzipFile, key: str, errors: str, *, is_start: bool = True
) -> Iterator[Record]:
    """The records of a file, which have one form; empty lines are skipped.

    The text is under `key`. A conversation is a list of messages: under `key`, "messages" or "conversations", or the
    whole line.
    Raises: DataError, with the number of the line, for anything else.
    """
    first = None
    for number, _, _, value in json_lines(name, stream, errors, is_start=is_start):
        location = f"{name}, line {number}"
        record = read_record(value, key, location)
        first = first or (number, record)
        if record.is_conversation != first[1].is_conversation:
            here, there = (_FORMS[each.is_conversation] for each in (record, first[1]))
            raise DataError(
                f"{location} is {here}, but line {first[0]} is {there}; a file must have one form, so make two files"
            )
        yield record._replace(text=_without_surrogates(location, record.text, errors))


def json_lines(
    name: str, stream: BufferedReader | gzip.GzipFile, errors: str, *, is_start: bool = True
) -> Iterator[JsonLine]:
    """The lines of a file, or of a part of one that is not at its start; lines of white space only are skipped.

    Raises: DataError for a line that cannot be decoded with `errors`, or is not JSON.
    """
    start = skip_bom(name, stream) if is_start else 0
    for number, line in enumerate(_lines(name, stream), 1):
        try:
            text = line.decode(errors=errors).rstrip()
            if text:
                yield JsonLine(number, start, len(line), parse_json(text))
        except UnicodeDecodeError as error:
            raise undecodable(name, start, error) from error
        except ValueError as error:
            reason = str(error).replace("line 1 ", "")
            raise DataError(
                f"{name}, line {number} is not JSON ({reason}); each line must be a JSON object with a text or messages"
            ) from error
        start += len(line)


_FORMS = {True: "a conversation", False: "a text"}


def read_record(row: object, key: str, location: str) -> Record:
    """The record in a JSON value.

    Raises: DataError, which begins with `location`, if it is neither a text nor a conversation.
    """
    value = row
    if isinstance(row, dict):
        value = row[key] if key in row else next((row[each] for each in CONVERSATION_KEYS if each in row), row)
        if value is row:
            raise _without_text(row, key, location)
    if isinstance(value, list):
        return Record(transcript(read_conversation(value, location)), is_conversation=True)
    if value is row:
        raise DataError(f'{location} must be a JSON object such as {{"{key}": "..."}}, or a list of messages')
    if not isinstance(value, str):
        raise DataError(
            f"{location}: the value of {key!r} must be a string or a list of messages, not {json.dumps(value)[:40]}"
        )
    return Record(value, is_conversation=False)


def _without_text(row: Mapping[str, object], key: str, location: str) -> DataError:
    keys = ", ".join(repr(found)[:40] for found in islice(row, 10)) or "none"
    return DataError(f"{location} has no key {key!r}; its keys: {keys}; name the key of the text with --text-key")


def _lines(name: str, stream: BufferedReader | gzip.GzipFile) -> Iterator[bytes]:
    try:
        yield from bounded_lines(stream)
    except ValueError as error:
        raise DataError(f"{name}: {error}; cut the text into several lines") from error


def _without_surrogates(location: str, text: str, errors: str) -> str:
    """The text with lone surrogates replaced by U+FFFD: JSON can escape one, but UTF-8 cannot encode it.

    Raises: DataError for one if `errors` is strict.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        if errors == "strict":
            surrogate = f"{ord(text[error.start]):04x}"
            raise DataError(
                f"{location}: \\u{surrogate} is half of a surrogate pair; correct it, or use --encoding-errors replace"
            ) from error
        return replace_surrogates(text)
    return text
