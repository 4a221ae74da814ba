"""The files that benchmarks are published in, as lines and records that know where they stand."""

import bz2
import gzip
import io
import json
import lzma
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

from minigpt.errors import DataError
from minigpt.evaluation.benchmarks.results import Data

_UNREADABLE = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, zipfile.BadZipFile, ValueError)


def lines(data: Data) -> Iterator[tuple[int, str]]:
    """The numbered lines of a text, from 1, each with its line end; .gz, .bz2 and .zip are unpacked.

    Raises: DataError for a file that cannot be read or is not UTF-8, with the line.
    """
    with _opened(data) as stream:
        for number, line in enumerate(stream, 1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise DataError(f"{data.name}, line {number} is not UTF-8 text") from error
            if number == 1 and text.startswith("version https://git-lfs"):
                raise DataError(f"{data.name} only points to the file, which Git LFS holds: git lfs pull")
            if "\0" in text:
                raise DataError(f"{data.name}, line {number} holds zero bytes: it is not a text")
            yield number, text


def records(data: Data, expected: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a .jsonl or .parquet file, and the place of each in words; `expected` is one, for errors.

    Raises: DataError, as `lines`, and for a line that is no JSON object.
    """
    if data.path.suffix == ".parquet":
        yield from _rows(data)
        return
    for number, line in lines(data):
        where = f"{data.name}, line {number}"
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise DataError(f"{where} is not JSON; expected {expected}") from error
        if not isinstance(record, dict):
            raise DataError(f"{where} is not an object; expected {expected}")
        yield where, record


@contextmanager
def _opened(data: Data) -> Iterator[BinaryIO]:
    """The file's bytes, unpacked."""
    try:
        if data.path.suffix == ".gz":
            with gzip.open(data.path) as stream:
                yield cast("BinaryIO", stream)
        elif data.path.suffix == ".bz2":
            with bz2.open(data.path) as stream:
                yield cast("BinaryIO", stream)
        elif data.path.suffix == ".zip":
            with zipfile.ZipFile(data.path) as archive, archive.open(_member(data, archive)) as stream:
                yield cast("BinaryIO", io.BufferedReader(cast("io.RawIOBase", stream)))
        else:
            with data.path.open("rb") as stream:
                yield stream
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"{data.name} cannot be read ({(error.strerror or str(error)).lower()})") from error
    except _UNREADABLE as error:
        raise DataError(f"{data.name} is damaged: it cannot be unpacked ({error})") from error


def _member(data: Data, archive: zipfile.ZipFile) -> str:
    names = archive.namelist()
    if data.member in names:
        return data.member
    wanted = f"{data.member!r}" if data.member else "one file alone"
    if data.member is None and len(names) == 1:
        return names[0]
    raise DataError(f"{data.name} holds {', '.join(names[:5]) or 'nothing'}, expected {wanted}; unpack it")


def _rows(data: Data) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise DataError(
            f"{data.name} is a parquet file, which pyarrow reads: pip install 'minigpt[parquet]', or give the "
            "benchmark's original file with --data"
        ) from error
    try:
        rows = pyarrow.parquet.read_table(data.path).to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{data.name} cannot be read as parquet; fetch it again") from error
    for number, row in enumerate(rows, 1):
        yield f"{data.name}, row {number}", row
