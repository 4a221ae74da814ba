"""Recognizes pipes, and reads a named pipe without waiting forever for a program that writes to it."""

import os
import select
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from minigpt.bounded_reading import open_without_waiting
from minigpt.errors import DataError, reason_of

_PATIENCE = 0.5  # seconds


def is_pipe(source: str) -> bool:
    """Whether a source can be read only once: standard input, or a named pipe as in <(…)."""
    try:
        return source == "-" or stat.S_ISFIFO(os.stat(source).st_mode)  # noqa: PTH116  (Path.is_fifo raises OSError)
    except (OSError, ValueError):  # reading it says what is wrong
        return False


def read_pipe(path: Path, block_size: int) -> Iterator[bytes]:
    """The content of a named pipe, until the last program that writes to it closes it.

    Raises: DataError if it cannot be opened, or no program opens it for writing within half a second.
    """
    try:
        pipe = open(path, "rb", buffering=0, opener=open_without_waiting)  # noqa: SIM115  (closed below)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({reason_of(error)})") from error
    with pipe:
        until = time.monotonic() + _PATIENCE
        while (block := pipe.read(block_size)) == b"":
            if time.monotonic() > until:
                raise DataError(
                    f"{path} is a pipe that no program writes to; start that program first, or give a text file"
                )
            time.sleep(0.01)
        while block != b"":
            if block is None:  # a program has opened the pipe, and has not written since
                select.select([pipe], [], [])
            else:
                yield block
            block = pipe.read(block_size)
