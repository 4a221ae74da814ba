"""Reads files that a stranger may have written: regular files only, with limits on their size, lines and nesting.

Every limit is checked before the memory is taken. The caller turns the OSError or ValueError into an error that
names the file.
"""

import contextlib
import errno
import functools
import json
import os
import re
import stat
import sys
from collections.abc import Collection, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any, Protocol

MAX_TEXT_FILE = 64 << 20  # bytes of a JSON file or a list of merges; the largest tokenizers have 35 MB
MAX_LINE = 64 << 20  # bytes of a line of JSON; a book has 1 MB
MAX_DEPTH = 64  # of lists and objects in JSON; a tokenizer.json has 6
MAX_VALUES = 1 << 20  # in one JSON text: each may take 120 bytes of memory for 3 in the file

_SMALL = 1 << 16  # characters of a JSON text that cannot hold too many values
# A string that does not end is matched to the end of the text; otherwise each quote in it would begin another search.
_STRINGS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_BRACKETS = re.compile(r"[\[{]+|[\]}]+")


class LongLineError(ValueError):
    """A line has more bytes than the limit."""


class Lines(Protocol):
    """A stream of bytes that can be read line by line."""

    def readline(self, size: int, /) -> bytes: ...


def open_regular(path: Path) -> BufferedReader:
    """Opens a regular file for reading bytes.

    Raises: OSError if it cannot be opened or is something else; a pipe is refused without waiting for its writer.
    """
    file = open(path, "rb", opener=open_without_waiting)  # noqa: SIM115  (Path.open takes no opener)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode) or is_of_kernel(path):
        file.close()
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a regular file", str(path))
    return file


def is_of_kernel(path: Path) -> bool:
    """Whether a regular file is one of the kernel, such as /proc/kmsg: its size is wrong, and a read may not end."""
    try:
        status = path.stat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_dev in _kernel_devices()


@functools.cache
def _kernel_devices() -> frozenset[int]:
    """The devices of the file systems that Linux makes up."""
    found = set()
    for path in ("/proc", "/sys"):
        with contextlib.suppress(OSError):
            found.add(Path(path).stat().st_dev)
    return frozenset(found - {Path("/").stat().st_dev})  # which is theirs where nothing is mounted


def open_without_waiting(path: str, flags: int) -> int:
    """An opener for `open` that does not wait for a pipe's other end; reading from the pipe does not wait either."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def read_regular(path: Path, limit: int = MAX_TEXT_FILE) -> bytes:
    """The content of a regular file.

    Raises: OSError as `open_regular`, and for a file of more than `limit` bytes.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(min(size, limit) + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"it has {size:,} bytes, and must have at most {limit:,}", str(path))
    return content


def read_json_value(path: Path) -> Any:
    """The value in a JSON file in UTF-8.

    Raises: OSError as `read_regular`; ValueError as `parse_json`.
    """
    return parse_json(read_regular(path).decode("utf-8-sig"))


def read_json_unicode(path: Path, paths: Collection[str] = ()) -> Any:
    """The value in a JSON file in UTF-8, of which every string can be written in UTF-8 again.

    `paths` are keys of an object whose values are paths, which need not be UTF-8.

    Raises: OSError, ValueError as `read_json_value`; ValueError for half of a surrogate pair, as in "\\ud800".
    """
    text = read_regular(path).decode("utf-8-sig")
    value = parse_json(text)
    if _SURROGATE.search(text):  # most files have none, or whole pairs only
        checked = {key: value[key] for key in value if key not in paths} if isinstance(value, dict) else value
        try:
            json.dumps(checked, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            found = ascii(error.object[error.start])[1:-1]
            raise ValueError(f"it has half of a surrogate pair ({found}), which is not a character") from error
    return value


def parse_json(text: str) -> Any:
    """The value of a JSON text.

    Raises: ValueError if it is not JSON, is nested too deeply, or has too many values or a number that is too long.
    """
    if len(text) > _SMALL or text.count("[") + text.count("{") > MAX_DEPTH:
        _check_structure(_STRINGS.sub("", text))
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except ValueError as error:  # Python's, which advises to change a limit of the interpreter
        raise ValueError(f"it has a number of more than {sys.get_int_max_str_digits():,} digits") from error


def _check_structure(structure: str) -> None:
    """Checks the nesting and the number of values of a JSON text whose strings were removed."""
    values = 1 + sum(map(structure.count, ",[{"))
    if values > MAX_VALUES:
        raise ValueError(f"it has {values:,} values; the maximum is {MAX_VALUES:,}")
    depth = 0
    for brackets in _BRACKETS.finditer(structure):
        length = brackets.end() - brackets.start()
        depth += length if brackets[0][0] in "[{" else -length
        if depth > MAX_DEPTH:
            raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")


def bounded_lines(stream: Lines, limit: int | None = None) -> Iterator[bytes]:
    """The lines of a stream.

    Raises: LongLineError for a line of more than `limit` bytes, by default MAX_LINE.
    """
    number, longest = 0, MAX_LINE if limit is None else limit
    while line := stream.readline(longest + 1):
        number += 1
        if len(line) > longest:
            raise LongLineError(f"line {number} has more than {longest:,} bytes")
        yield line
