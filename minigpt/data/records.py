"""Reads records with a text or a conversation: lines of a `.jsonl`, the array in a `.json`, rows of a `.parquet`."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

from minigpt.bounded_reading import MAX_LINE, bounded_lines, parse_json
from minigpt.chat_logs.chat_log import (
    WEIGHT_KEYS,
    conversation_fields,
    is_content,
    is_message,
    is_pair,
    read_conversation,
    record_conversation,
)
from minigpt.chat_logs.transcript import transcript
from minigpt.data.source_files import ByteStream, SourceFile, open_source, skip_bom, undecodable
from minigpt.errors import DataError
from minigpt.large_corpora.table import Column, read_columns, read_rows
from minigpt.tokenizer.vocabulary import replace_surrogates


class Record(NamedTuple):
    """The text of one line, and whether it is the transcript of a conversation."""

    text: str
    is_conversation: bool


class JsonValue(NamedTuple):
    """A JSON value in a file: its line, or its number in an array, counted from 1; its first byte, counted from 0; the
    bytes that were read for it; and where it is, as errors say it."""

    number: int
    start: int
    size: int
    value: object
    location: str


JsonForm = Literal["lines", "whole"]  # a value on each line; or one value, or an array of them, as the whole file
_ARRAY = re.compile(rb"\[\s*(\[\s*)?\{")
_ARRAY_START = re.compile(r"\s*\[(\s*[\[{])?$|\s*\[.*,$")  # of one that goes on on the next line
_SHOWN_COLUMNS = 10  # in an error
_RENAME = "rename the file to .txt to read it unchanged"


def json_form(file: SourceFile, key: str) -> JsonForm | None:
    """How a file holds records; None if it has none, so that it is read as plain text.

    A `.json` in a folder has none if its first value has no text and no conversation, or if it is one object without
    messages.
    Raises: DataError for such a file that the user named, and for an array of objects that has too many bytes or
    values.
    """
    if file.is_json or not file.may_be_json:
        return "lines" if file.is_json else None
    status = file.stat()
    return _form_of(file, key, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=10_000)  # every pass over a text asks again
def _form_of(file: SourceFile, key: str, _modified: int, _size: int) -> JsonForm | None:
    with open_source(file) as stream:
        skip_bom(file.name, stream)
        text = stream.read(MAX_LINE + 1).lstrip()
    line, _, rest = text.partition(b"\n")
    forms: list[tuple[JsonForm, bytes]] = [("lines", line)]
    if len(text) <= MAX_LINE:
        forms.append(("whole", text))
    invalid, problem = "", f"it has more than {MAX_LINE:,} bytes" if len(text) > MAX_LINE else ""
    for form, part in forms:
        try:
            value = parse_json(part.decode(errors=file.decoding.errors))
        except UnicodeDecodeError:
            return None  # reading it says where
        except json.JSONDecodeError as error:
            invalid = str(error)
            continue
        except ValueError as error:
            problem = str(error)
            continue
        if _has_messages(value, key) or (form == "lines" and _has_text(value, key)):
            return form
        first = value[0] if isinstance(value, list) and value else None
        if _has_messages(first, key) or _has_text(first, key):
            return "whole"
        return None if file.is_in_folder else _named_form(file.name, key, value, form if rest.strip() else "whole")
    if problem and _ARRAY.match(text):
        raise DataError(
            f"{file.name} is a JSON array that cannot be read ({problem}); write each of its values on a line of a "
            ".jsonl file, as jq -c '.[]' does"
        )
    if file.is_in_folder or not text or b"\0" in text:
        return None
    raise DataError(f"{file.name} is not JSON ({problem or invalid}); correct it, or {_RENAME}")


def _named_form(name: str, key: str, value: object, form: JsonForm) -> JsonForm:
    """The form of a file that the user named and whose first value has no text: lines, or the whole file."""
    if form == "lines" and isinstance(value, dict):
        return form  # reading it says what the line has
    if isinstance(value, dict) and not conversation_fields(value, key):
        array = next((each for each in value if isinstance(value[each], list) and value[each]), None)
        way = "" if array is None else f"write the array under {array[:40]!r} to a separate .json, or "
        raise DataError(f"{name} is one JSON object, not an array of records; its keys: {_keys(value)}; {way}{_RENAME}")
    for record in value[:1] if isinstance(value, list) else [value]:
        try:
            read_record(record, key, f"{name}, record 1")
        except DataError as error:
            raise DataError(f"{error}, or {_RENAME}") from error
    return "whole"


def _has_messages(value: object, key: str) -> bool:
    """Whether a value is a list of messages, or an object with one."""
    if isinstance(value, dict):
        value = next((value[each] for each in conversation_fields(value, key)), None)
    return isinstance(value, list) and bool(value) and is_message(value[0])


def _has_text(value: object, key: str) -> bool:
    """Whether a value is an object with a text or a pair of texts."""
    return isinstance(value, dict) and any(isinstance(value[each], str) for each in conversation_fields(value, key)[:1])


def read_records(values: Iterable[JsonValue], key: str, errors: str) -> Iterator[Record]:
    """The records in the values of a file, which have one form.

    The text is under `key`. A conversation is a list of messages: under `key`, "messages" or "conversations", or the
    whole value; or it is a pair of a question and an answer.
    Raises: DataError, with the location of the value, for anything else.
    """
    first = None
    for _, _, _, value, location in values:
        record = read_record(value, key, location)
        first = first or (location.rpartition(", ")[2], record)
        if record.is_conversation != first[1].is_conversation:
            here, there = (_FORMS[each.is_conversation] for each in (record, first[1]))
            raise DataError(
                f"{location} is {here}, but {first[0]} is {there}; a file must have one form, so make two files"
            )
        yield record._replace(text=_without_surrogates(location, record.text, errors))


def json_values(form: JsonForm, name: str, stream: ByteStream, errors: str) -> Iterator[JsonValue]:
    """The values in a file of this form; lines of white space only are skipped.

    Raises: DataError for one that cannot be decoded with `errors`, or is not JSON.
    """
    return (_lines if form == "lines" else _whole)(name, stream, errors)


def _lines(name: str, stream: ByteStream, errors: str) -> Iterator[JsonValue]:
    start, text = skip_bom(name, stream), ""
    for number, line in enumerate(_bounded_lines(name, stream), 1):
        is_first = not text
        try:
            text = line.decode(errors=errors).rstrip()
            value = parse_json(text) if text else None
        except UnicodeDecodeError as error:
            raise undecodable(name, start, error) from error
        except ValueError as error:
            if is_first and _ARRAY_START.match(text):
                raise _array(name) from error
            reason = str(error).replace("line 1 ", "")
            raise DataError(
                f"{name}, line {number} is not JSON ({reason}); each line must be a JSON object with a text or messages"
            ) from error
        if is_first and _is_array_of_records(value):
            raise _array(name)
        if text:
            yield JsonValue(number, start, len(line), value, f"{name}, line {number}")
        start += len(line)


def _is_array_of_records(value: object) -> bool:
    """Whether the first line of a file is an array of texts or conversations, and not one conversation."""
    first = value[0] if isinstance(value, list) and value else None
    if isinstance(first, dict):
        return not is_message(first) and not is_content(first)
    return isinstance(first, list)


def _array(name: str) -> DataError:
    return DataError(f"{name} is one JSON array, not a JSON value on each line; rename it to .json")


def _whole(name: str, stream: ByteStream, errors: str) -> Iterator[JsonValue]:
    """The values of the array in a file, or its one value."""
    start = skip_bom(name, stream)
    content = stream.read(MAX_LINE + 1)
    try:
        value = parse_json(content.decode(errors=errors))
    except UnicodeDecodeError as error:
        raise undecodable(name, start, error) from error
    except ValueError as error:
        raise DataError(f"{name} is not JSON ({error})") from error
    values = value if isinstance(value, list) and not (value and is_message(value[0])) else [value]
    for number, each in enumerate(values, 1):
        yield JsonValue(number, 0, len(content) if number == 1 else 0, each, f"{name}, record {number}")


_FORMS = {True: "a conversation", False: "a text"}


def read_record(row: object, key: str, location: str) -> Record:
    """The record in a JSON value.

    Raises: DataError, which begins with `location`, if it is neither a text nor a conversation.
    """
    if isinstance(row, list):
        return Record(transcript(read_conversation(row, location)), is_conversation=True)
    if not isinstance(row, dict):
        raise DataError(f'{location} must be a JSON object such as {{"{key}": "..."}}, or a list of messages')
    fields = conversation_fields(row, key)
    if not fields:
        raise DataError(
            f"{location} has no key {key!r}; its keys: {_keys(row)}; name the key of the text with --text-key"
        )
    for mark in WEIGHT_KEYS:
        if row.get(mark) is False or (mark == "weight" and row.get(mark) == 0):
            raise DataError(
                f"{location} has the {mark} {json.dumps(row[mark])}, which can be given to messages only; remove the "
                "record, or give each of its messages the weight 0"
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


def _keys(row: Mapping[str, object]) -> str:
    return ", ".join(repr(found)[:40] for found in islice(row, 10)) or "none"


def _bounded_lines(name: str, stream: ByteStream) -> Iterator[bytes]:
    try:
        yield from bounded_lines(stream)
    except ValueError as error:
        raise DataError(f"{name}: {error}; cut the text into several lines") from error


def _without_surrogates(location: str, text: str, errors: str) -> str:
    """The text with lone surrogates replaced by U+FFFD: JSON can escape one, but UTF-8 cannot encode it."""
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


def read_parquet(path: Path, name: str, key: str, errors: str) -> Iterator[Record]:
    """The records in the column `key`, else in those of a conversation.

    Texts are decoded from UTF-8 with `errors`; a list in a row is a conversation. Memory holds a few rows.
    Raises: DataError for a file that is damaged, takes too much, or has no such column; MissingPackageError without
    pyarrow.
    """
    found = read_columns(path, name)
    columns = [*_text_columns(found, name, key), *_weight_columns(found)]
    advice = "correct it, or use --encoding-errors replace"
    for number, row in read_rows(path, name, columns, errors, advice):
        yield read_record(row, key, f"{name}, row {number}")


def _text_columns(found: list[Column], name: str, key: str) -> list[str]:
    """The names of the columns to read."""
    names = [each.name for each in found]
    kinds = {each.name: each for each in found}
    columns = conversation_fields(names, key)
    texts = [each.name for each in found if each.kind == "text"]
    shown = ", ".join(repr(each)[:40] for each in (texts or names)[:_SHOWN_COLUMNS]) or "none"
    what = "its columns of text" if texts else "its columns"
    if not columns:
        raise DataError(f"{name} has no column {key!r}; {what}: {shown}; name the column of the text with --text-key")
    if not is_pair(columns) and kinds[columns[0]].kind == "text":
        columns = columns[:1]
    for column in columns:
        if names.count(column) > 1:
            raise DataError(f"{name} has several columns {column!r}; rename all but one")
        if kinds[column].kind not in ("text", "list", "null"):
            raise DataError(
                f"{name}: column {column!r} holds {kinds[column].type}, not texts or conversations; {what}: {shown}; "
                "name the column of the text with --text-key"
            )
    return columns


def _weight_columns(found: list[Column]) -> list[str]:
    names = [each.name for each in found]
    numbers = [each.name for each in found if each.kind == "number"]
    return [key for key in WEIGHT_KEYS if key in numbers and names.count(key) == 1]
