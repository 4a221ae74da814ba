"""Reads JSON files that hold records otherwise than on lines: `.json`, as one array, one value, or lines after all."""

import json
import re
from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import Literal

from minigpt.bounded_reading import MAX_LINE, parse_json
from minigpt.chat_logs.chat_log import conversation_fields, is_message
from minigpt.chat_logs.exports import SUFFIXES, export_app, export_records, zip_reader
from minigpt.data.formats import TextReader
from minigpt.data.records import (
    JsonValue,
    Record,
    json_lines,
    read_record,
    read_records,
    shown_keys,
)
from minigpt.data.source_files import ByteStream, SourceFile, open_source, skip_bom, undecodable
from minigpt.errors import DataError

JsonForm = Literal["lines", "whole"]  # a value on each line; or one value, or an array of them, as the whole file
_ARRAY = re.compile(rb"\[\s*(\[\s*)?\{")
_RENAME = "rename the file to .txt to read it unchanged"


def json_form(file: SourceFile, key: str) -> JsonForm | None:
    """How a file holds records; None if it has none, so that it is read as plain text.

    A `.json` in a folder has none if its first value has no text and no conversation, or if it is one object without
    messages.
    Raises: DataError for such a file that the user named, and for an array of objects that has too many bytes or
    values.
    """
    if file.is_json or not may_be_json(file):
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
        raise DataError(
            f"{name} is one JSON object, not an array of records; its keys: {shown_keys(value)}; {way}{_RENAME}"
        )
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


def json_values(form: JsonForm, name: str, stream: ByteStream, errors: str) -> Iterator[JsonValue]:
    """The values in a file of this form; lines of white space only are skipped.

    Raises: DataError for one that cannot be decoded with `errors`, or is not JSON.
    """
    return (json_lines if form == "lines" else _whole)(name, stream, errors)


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


def may_be_json(file: SourceFile) -> bool:
    """Whether the file may be JSON that is not on lines, or on lines but not named so."""
    return file.plain_name.endswith(".json")


def _records(file: SourceFile, key: str) -> Iterator[Record] | None:
    if (app := export_app(file)) is not None:
        return export_records(file, app)
    form = json_form(file, key)
    return None if form is None else _records_of(form, file, key)


def _records_of(form: JsonForm, file: SourceFile, key: str) -> Iterator[Record]:
    errors = file.decoding.errors
    with open_source(file) as stream:
        yield from read_records(json_values(form, file.name, stream, errors), key, errors)


def first_value_keys(values: Iterator[JsonValue]) -> Collection[str]:
    """The keys of the first of these values."""
    first = next((each.value for each in values), None)
    return first if isinstance(first, dict) else ()


def _keys(file: SourceFile, key: str) -> Collection[str]:
    form = None if export_app(file) else json_form(file, key)
    if form is None:
        return ()
    with open_source(file) as stream:
        return first_value_keys(json_values(form, file.name, stream, file.decoding.errors))


readers = (TextReader(suffixes=(".json", *SUFFIXES), is_binary=False, records=_records, keys=_keys), zip_reader)
