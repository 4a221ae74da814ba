"""Reads the lines and records of benchmark files, plain or compressed, each with its location for messages."""

import atexit
import bz2
import gzip
import io
import lzma
import shutil
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from minigpt.benchmarks.results import DataFile
from minigpt.bounded_reading import LongLineError, bounded_lines, open_regular, parse_json
from minigpt.errors import DataError, reason_of
from minigpt.large_corpora.table import read_rows
from minigpt.optional_packages import check_installed

_WITHOUT_PYARROW = "pass the benchmark's original file with --data"
_MOST_BYTES = 1 << 27  # of text in a file; the published files have at most 12 MB
_DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, zipfile.BadZipFile, ValueError)


def check_packages(files: Iterable[DataFile]) -> None:
    """Checks that the packages that read these files are installed.

    Raises: MissingPackageError.
    """
    for data in files:
        if data.path.suffix == ".parquet":
            check_installed(f"reading {data.name}", "pyarrow", instead=_WITHOUT_PYARROW)


def piped_data() -> list[DataFile]:
    """What standard input holds, in a temporary file that is removed when this process ends."""
    with tempfile.NamedTemporaryFile(prefix="minigpt-", delete=False) as file:
        atexit.register(Path(file.name).unlink, missing_ok=True)
        shutil.copyfileobj(sys.stdin.buffer, file)
    return [DataFile(Path(file.name), "standard input")]


def read_lines(data: DataFile) -> Iterator[tuple[int, str]]:
    """The lines of a text with their line endings, numbered from 1; .gz, .bz2 and .zip are decompressed.

    Raises: DataError for a file that cannot be read, is not UTF-8, with the line, or is far too large.
    """
    total = 0
    with _open(data) as stream:
        for number, line in enumerate(bounded_lines(stream), 1):
            total = _checked(total + len(line), data)
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise DataError(f"{data.name}, line {number} is not UTF-8 text") from error
            if number == 1 and text.startswith("version https://git-lfs"):
                raise DataError(f"{data.name} is a Git LFS pointer, not the file; run git lfs pull")
            if "\0" in text:
                raise DataError(f"{data.name}, line {number} contains zero bytes; it is not a text file")
            yield number, text


def read_records(data: DataFile, expected: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The location and content of each record in a .jsonl or .parquet file; `expected` is an example for messages.

    Raises: DataError, as `read_lines`, and for a line that is not a JSON object.
    """
    if data.path.suffix == ".parquet":
        total = 0
        for number, row in read_rows(data.path, data.name):
            total = _checked(total + _n_characters(row), data)
            yield f"{data.name}, row {number}", row
        return
    for number, line in read_lines(data):
        where = f"{data.name}, line {number}"
        if not line.strip():
            continue
        try:
            record = parse_json(line)
        except ValueError as error:
            raise DataError(f"{where} is not JSON; expected {expected}") from error
        if not isinstance(record, dict):
            raise DataError(f"{where} is not an object; expected {expected}")
        yield where, record


@contextmanager
def _open(data: DataFile) -> Iterator[BinaryIO]:
    """Opens the file for reading its decompressed bytes."""
    try:
        if data.path.suffix == ".zip":
            with zipfile.ZipFile(data.path) as archive, archive.open(_member(data, archive)) as stream:
                yield cast("BinaryIO", io.BufferedReader(cast("io.RawIOBase", stream)))
        else:
            opened: Any = {".gz": gzip.open, ".bz2": bz2.open}.get(data.path.suffix, open_regular)
            with opened(data.path) as stream:
                yield stream
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"{data.name} cannot be read ({reason_of(error)})") from error
    except RuntimeError as error:  # an encrypted zip, or one of a method that Python lacks
        raise DataError(f"{data.name} cannot be decompressed ({error}); give the decompressed file") from error
    except LongLineError as error:
        raise DataError(f"{data.name}: {error}; pass the benchmark's original file with --data") from error
    except _DAMAGED as error:
        raise DataError(f"{data.name} is damaged and cannot be decompressed ({error})") from error


def _member(data: DataFile, archive: zipfile.ZipFile) -> str:
    names = archive.namelist()
    if data.member in names:
        return data.member
    expected = f"{data.member!r}" if data.member else "a single file"
    if data.member is None and len(names) == 1:
        return names[0]
    raise DataError(f"{data.name} contains {', '.join(names[:5]) or 'nothing'}, expected {expected}; decompress it")


def _checked(total: int, data: DataFile) -> int:
    if total > _MOST_BYTES:
        raise DataError(
            f"{data.name} has more than {_MOST_BYTES:,} bytes of text, far more than any of these benchmarks; pass the "
            "benchmark's original file with --data"
        )
    return total


def _n_characters(value: object) -> int:
    """The characters in a value and in the lists and objects in it; at least one for each."""
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + (
        sum(map(_n_characters, value)) if isinstance(value, list) else len(value) if isinstance(value, str) else 0
    )
