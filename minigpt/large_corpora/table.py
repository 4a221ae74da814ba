"""The columns and rows of a `.parquet` file as values of JSON, read by pyarrow in a child process."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from minigpt.documents.limited_reading import RefusedError, read_limited
from minigpt.errors import DataError, reason_of
from minigpt.optional_packages import check_installed, optional_import

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

_SECONDS, _SECONDS_PER_MB = 1, 0.1  # of computing, until the first rows and between two groups of them
_MEMORY, _MEMORY_PER_BYTE = 120 << 20, 16  # bytes, beside the 60 MB that the child process has
_ROWS = 32  # that pyarrow decodes at once; each may have a megabyte
_ROWS_OF_CATEGORIES = 256  # if a column is categories, of which pyarrow makes the list for each batch
_SENT_ROWS, _SENT_CHARACTERS = 256, 1 << 20  # to this process at once
_BUFFER = 1 << 20  # bytes read at once
_KINDS = {  # of columns, by pyarrow's names of their types
    "text": ("string", "large_string", "binary", "large_binary"),
    "list": ("list", "large_list"),
    "number": ("boolean", "integer", "floating"),
    "null": ("null",),
}


class Column(NamedTuple):
    """A column: its name, "text", "list", "number", "null" or "other", and its type as pyarrow calls it."""

    name: str
    kind: str
    type: str


def read_columns(path: Path, name: str) -> list[Column]:
    """The columns, in order; `name` is what errors call the file.

    Raises: DataError for a file that is damaged or takes too much; MissingPackageError without pyarrow.
    """
    (columns,) = _read(path, name, columns_in_child)
    return [Column(*each) for each in columns]


def read_rows(
    path: Path,
    name: str,
    columns: Sequence[str] | None = None,
    errors: str = "strict",
    advice: str = "download it again",
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows, numbered from 1, with all columns or these.

    Texts are decoded from UTF-8 with `errors`; `advice` is for one that is not UTF-8.
    Raises: as `read_columns`.
    """
    for number, names, rows in _read(path, name, rows_in_child, columns, errors, advice):
        for index, row in enumerate(rows):
            yield number + index, dict(zip(names, row, strict=True))


def _read(path: Path, name: str, reader: Any, *arguments: Any) -> Iterator[Any]:
    try:
        size = path.stat().st_size
        feature = f"reading {name}, a Parquet file,"
        check_installed(feature, "pyarrow")
        with optional_import(feature, "pyarrow"):
            yield from read_limited(
                reader,
                str(path),
                *arguments,
                packages=("pyarrow.parquet",),
                seconds=_SECONDS + int(_SECONDS_PER_MB * size / (1 << 20)),
                memory=_MEMORY + _MEMORY_PER_BYTE * size,
                advice="write it again with smaller pages",
            )
    except OSError as error:
        raise DataError(f"{name} cannot be read ({reason_of(error)})") from error
    except RefusedError as error:
        raise DataError(f"{name} {error}") from error
    except ValueError as error:
        raise DataError(f"{name} is damaged, or not a Parquet file ({error}); download it again") from error


def columns_in_child(path: str) -> Iterator[list[Column]]:
    """The columns."""
    with _open(path) as file:
        yield [Column(each.name, _kind(each.type), str(each.type)[:40]) for each in file.schema_arrow]


def rows_in_child(
    path: str, columns: list[str] | None, errors: str, advice: str
) -> Iterator[tuple[int, list[str], list[list[object]]]]:
    """The number of a row, the names of its columns, and the values of it and of rows after it."""
    from pyarrow import types

    with _open(path) as file:
        names = file.schema_arrow.names if columns is None else columns
        has_categories = any(types.is_dictionary(each.type) for each in file.schema_arrow)
        options = {"batch_size": _ROWS_OF_CATEGORIES if has_categories else _ROWS, "use_threads": False}
        number = 1
        for group in range(file.num_row_groups):
            rows: list[list[object]] = []
            size = 0
            for batch in file.iter_batches(row_groups=[group], columns=columns, **options):
                for row in zip(*(batch.column(each) for each in columns or range(batch.num_columns)), strict=True):
                    try:
                        rows.append([_value(scalar, errors) for scalar in row])
                    except UnicodeDecodeError as error:
                        raise RefusedError(
                            f"is not UTF-8 in row {number + len(rows)}: byte {error.start} is "
                            f"0x{error.object[error.start]:02x}; {advice}"
                        ) from error
                    size += sum(len(value) for value in rows[-1] if isinstance(value, str))
                    if len(rows) == _SENT_ROWS or size > _SENT_CHARACTERS:
                        yield number, names, rows
                        number, rows, size = number + len(rows), [], 0
            yield number, names, rows
            number += len(rows)


def _open(path: str) -> "ParquetFile":
    from pyarrow.parquet import ParquetFile

    return ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False, memory_map=False)


def _kind(type_: Any) -> str:
    from pyarrow import types

    value = type_.value_type if types.is_dictionary(type_) else type_
    found = (kind for kind, names in _KINDS.items() if any(getattr(types, f"is_{name}")(value) for name in names))
    return next(found, "other")


def _value(scalar: Any, errors: str) -> object:
    """A value as Python has it; texts are decoded here, since a damaged file may have any bytes."""
    import pyarrow

    if not scalar.is_valid:
        return None
    if isinstance(scalar, pyarrow.BinaryScalar):
        return scalar.as_buffer().to_pybytes().decode("utf-8", errors)
    if isinstance(scalar, pyarrow.DictionaryScalar):
        return _value(scalar.value, errors)
    if isinstance(scalar, pyarrow.StructScalar):
        return {name: _value(each, errors) for name, each in scalar.items()}
    if isinstance(scalar, pyarrow.ListScalar) and not isinstance(scalar, pyarrow.MapScalar):
        return [_value(each, errors) for each in scalar]
    return scalar.as_py()
