"""Reads columns of a `.parquet` file as records, a few rows at a time."""

from collections.abc import Iterator
from pathlib import Path

from minigpt.data.chat_log import WEIGHT_KEYS, conversation_fields, is_pair
from minigpt.data.records import Record, read_record
from minigpt.data.table import Column, read_columns, read_rows
from minigpt.errors import DataError

_SHOWN = 10  # columns in an error


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
    """The names of the columns to read.

    Raises: DataError if there is none, or it holds something else than texts or conversations.
    """
    names = [each.name for each in found]
    kinds = {each.name: each for each in found}
    columns = conversation_fields(names, key)
    texts = [each.name for each in found if each.kind == "text"]
    shown = ", ".join(repr(each)[:40] for each in (texts or names)[:_SHOWN]) or "none"
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
