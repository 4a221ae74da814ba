"""Reads columns of a `.parquet` file as records, a few rows at a time."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minigpt.bounded_reading import MAX_LINE
from minigpt.data.chat_log import WEIGHT_KEYS, conversation_fields, is_pair
from minigpt.data.records import Record, read_record
from minigpt.errors import DataError
from minigpt.optional_packages import optional_import

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

_ROWS = 256  # per batch
_BUFFER = 1 << 20  # bytes read at once
_LARGE, _MAX_RATIO = 1 << 28, 200  # bytes of a row group, which must not be this many times those of the file
_SHOWN = 10  # columns in an error


def read_parquet(
    path: Path, name: str, key: str, errors: str, row_groups: Sequence[int] | None = None
) -> Iterator[Record]:
    """The records in the column `key`, else in those of a conversation, of all row groups or of these.

    Texts are decoded from UTF-8 with `errors`; a list in a row is a conversation. Memory holds one page of each
    column and a few rows.
    Raises: DataError for a file that is damaged or has no such column; MissingPackageError without pyarrow.
    """
    with _opened(path, name) as file:
        columns = [*_text_columns(file, name, key), *_weight_columns(file)]
        groups = range(file.num_row_groups) if row_groups is None else row_groups
        yield from _records(file, path, name, key, columns, errors, groups)


def row_group_bytes(path: Path, name: str, key: str) -> list[int]:
    """About how many bytes of the file each row group takes.

    Raises: as `read_parquet`.
    """
    with _opened(path, name) as file:
        _text_columns(file, name, key)
        sizes = [_size(file, group) for group in range(file.num_row_groups)]
        return [path.stat().st_size * size // max(1, sum(sizes)) for size in sizes]


def column_names(path: Path, name: str) -> list[str]:
    """The names of all columns.

    Raises: as `read_parquet`.
    """
    with _opened(path, name) as file:
        return list(file.schema_arrow.names)


@contextmanager
def _opened(path: Path, name: str) -> Iterator["ParquetFile"]:
    """The open file; errors of pyarrow, which may be of any kind for a damaged file, become a DataError."""
    with optional_import(f"reading {name}, a Parquet file,", "pyarrow"):
        from pyarrow import parquet
    try:
        texts = [each.name for each in parquet.read_schema(path) if _is_text(each.type)]
        # As dictionaries, so that a value that is repeated a million times is in memory once.
        with parquet.ParquetFile(
            path, read_dictionary=texts, buffer_size=_BUFFER, pre_buffer=False, memory_map=False
        ) as file:
            yield file
    except DataError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.strerror:
            raise DataError(f"{name} cannot be read ({error.strerror.lower()})") from error
        reason = " ".join(str(error).split())[:100] or type(error).__name__
        raise DataError(f"{name} is damaged, or not a Parquet file ({reason}); download it again") from error


def _text_columns(file: "ParquetFile", name: str, key: str) -> list[str]:
    """The names of the columns to read.

    Raises: DataError if there is none, or it holds something else than texts or conversations.
    """
    from pyarrow import types

    schema = file.schema_arrow
    columns = conversation_fields(schema.names, key)
    texts = [each.name for each in schema if _is_text(each.type)]
    shown = ", ".join(repr(each)[:40] for each in (texts or schema.names)[:_SHOWN]) or "none"
    what = "its columns of text" if texts else "its columns"
    if not columns:
        raise DataError(f"{name} has no column {key!r}; {what}: {shown}; name the column of the text with --text-key")
    if not is_pair(columns) and _is_text(schema.field(schema.names.index(columns[0])).type):
        columns = columns[:1]
    for column in columns:
        if schema.names.count(column) > 1:
            raise DataError(f"{name} has several columns {column!r}; rename all but one")
        kind = schema.field(column).type
        if not (_is_text(kind) or types.is_list(kind) or types.is_large_list(kind) or types.is_null(kind)):
            raise DataError(
                f"{name}: column {column!r} holds {str(kind)[:40]}, not texts or conversations; {what}: {shown}; name "
                "the column of the text with --text-key"
            )
    return columns


def _weight_columns(file: "ParquetFile") -> list[str]:
    from pyarrow import types

    is_one = (types.is_boolean, types.is_integer, types.is_floating)
    found = [each.name for each in file.schema_arrow if any(check(each.type) for check in is_one)]
    return [key for key in WEIGHT_KEYS if found.count(key) == 1 and file.schema_arrow.names.count(key) == 1]


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    return any(
        is_one(kind) for is_one in (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    )


def _size(file: "ParquetFile", group: int) -> int:
    """The decompressed bytes of all columns of a row group.

    Those of one column are not asked for: of a damaged column pyarrow (26) does not raise an error but aborts.
    """
    return max(0, int(file.metadata.row_group(group).total_byte_size))


def _check_size(file: "ParquetFile", group: int, path: Path, name: str) -> None:
    """Raises DataError for a row group that would take much more memory than the file has bytes."""
    size, stored = _size(file, group), path.stat().st_size
    if size > _LARGE and size > _MAX_RATIO * stored:
        raise DataError(
            f"{name}: row group {group + 1} would have {size:,} bytes, and the file has {stored:,}; write it again "
            "with smaller row groups"
        )


def _records(
    file: "ParquetFile", path: Path, name: str, key: str, columns: list[str], errors: str, groups: Sequence[int]
) -> Iterator[Record]:
    for group in groups:
        _check_size(file, group, path, name)
        number = sum(file.metadata.row_group(each).num_rows for each in range(group))
        for batch in file.iter_batches(_ROWS, row_groups=[group], columns=columns, use_threads=False):
            for scalars in zip(*(batch.column(each) for each in columns), strict=True):
                number += 1
                location = f"{name}, row {number}"
                try:
                    values = [_value(scalar, location, errors) for scalar in scalars]
                except UnicodeDecodeError as error:
                    raise DataError(
                        f"{location} is not UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}; correct "
                        "it, or use --encoding-errors replace"
                    ) from error
                yield read_record(dict(zip(columns, values, strict=True)), key, location)


def _value(scalar: Any, location: str, errors: str) -> object:
    """A value of the column as Python has it; texts are decoded here, since a damaged file may have any bytes."""
    from pyarrow import types

    kind = scalar.type
    if scalar.is_valid and (types.is_list(kind) or types.is_large_list(kind)):
        return [_value(each, location, errors) for each in scalar]
    if scalar.is_valid and types.is_struct(kind):
        return {name: _value(each, location, errors) for name, each in scalar.items()}
    if not (scalar.is_valid and _is_text(kind)):
        return scalar.as_py()
    buffer = (scalar.value if hasattr(scalar, "dictionary") else scalar).as_buffer()
    if buffer.size > MAX_LINE:
        raise DataError(f"{location} has {buffer.size:,} bytes; the maximum is {MAX_LINE:,}: cut it into several rows")
    return buffer.to_pybytes().decode("utf-8", errors)
