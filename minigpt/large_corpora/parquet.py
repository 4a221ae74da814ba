"""Reads the rows of `.parquet` files as records."""

from collections.abc import Collection, Iterator

from minigpt.data.formats import TextReader
from minigpt.data.records import Record, fields_of, read_record
from minigpt.data.source_files import SourceFile
from minigpt.errors import DataError
from minigpt.large_corpora.table import Column, read_columns, read_rows

_SHOWN_COLUMNS = 10  # in an error


def _records(file: SourceFile, key: str) -> Iterator[Record]:
    """The records in the column `key`, else in those of a conversation.

    Texts are decoded from UTF-8; a list in a row is a conversation. Memory holds a few rows.
    Raises: DataError for a file that is damaged, takes too much, or has no such column; MissingPackageError without
    pyarrow.
    """
    columns = _columns(read_columns(file.path, file.name), file.name, key)
    advice = "correct it, or use --encoding-errors replace"
    for number, row in read_rows(file.path, file.name, columns, file.decoding.errors, advice):
        yield read_record(row, key, f"{file.name}, row {number}")


def _columns(found: list[Column], name: str, key: str) -> list[str]:
    """The names of the columns to read."""
    names = [each.name for each in found]
    kinds = {each.name: each for each in found}
    fields = fields_of(names, key)
    columns = list(fields.names)
    texts = [each.name for each in found if each.kind == "text"]
    shown = ", ".join(repr(each)[:40] for each in (texts or names)[:_SHOWN_COLUMNS]) or "none"
    what = "its columns of text" if texts else "its columns"
    if not columns:
        raise DataError(f"{name} has no column {key!r}; {what}: {shown}; name the column of the text with --text-key")
    if not fields.is_pair and kinds[columns[0]].kind == "text":
        columns = columns[:1]
    for column in columns:
        if names.count(column) > 1:
            raise DataError(f"{name} has several columns {column!r}; rename all but one")
        if kinds[column].kind not in ("text", "list", "null"):
            raise DataError(
                f"{name}: column {column!r} holds {kinds[column].type}, not texts or conversations; {what}: {shown}; "
                "name the column of the text with --text-key"
            )
    marks = [each for each in fields.marks if kinds[each].kind == "number" and names.count(each) == 1]
    return [*columns, *marks]


def _keys(file: SourceFile, _key: str) -> Collection[str]:
    return [column.name for column in read_columns(file.path, file.name)]


reader = TextReader(suffixes=(".parquet",), records=_records, keys=_keys)
