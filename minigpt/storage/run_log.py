"""A file of JSON lines that is always whole lines and misses none, even where the disk fills up in the middle."""

import contextlib
import io
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from minigpt.errors import CheckpointError
from minigpt.storage.files import atomic_write, explained, sync

_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)  # Windows would change line ends
_AT_ONCE = 1000  # lines in one write


class Log:
    """The log at `path`: what cannot be written waits in memory and is written, in order, before what comes next.

    The file is opened for every write: that costs 10 µs, and network file systems say only in closing what went wrong.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._waiting: list[bytes] = []
        self._whole: int | None = None  # bytes of the file that are whole lines, where a write has failed behind them

    @property
    def unwritten(self) -> int:
        """How many lines wait for the disk."""
        return len(self._waiting)

    def append(self, record: Mapping[str, Any]) -> None:
        """Adds one line, to the file if it can be written and in any case to what `read` finds."""
        self._waiting.append(json.dumps(finite(record), allow_nan=False).encode() + b"\n")
        with contextlib.suppress(OSError):  # told by `unwritten` and `flush`
            self._write_waiting()

    def flush(self) -> None:
        """Writes what waits, and makes all lines survive a power cut.

        Raises: CheckpointError where they cannot be written; they go on waiting.
        """
        with explained(self.path):
            self._write_waiting()
            if self.path.exists():
                sync(self.path)

    def read(self) -> Iterator[dict[str, Any]]:
        """The records in order; a last line cut short by a kill is left out.

        Raises: CheckpointError where a line is not JSON.
        """
        with self.path.open("rb") if self.path.exists() else io.BytesIO() as file:
            written = file if self._whole is None else io.BytesIO(file.read(self._whole))
            for number, line in enumerate(chain(written, self._waiting), 1):
                if not line.endswith(b"\n"):
                    continue
                try:
                    yield json.loads(line)
                except ValueError as error:
                    raise CheckpointError(f"{self.path}, line {number} is not JSON ({error}); remove it") from error

    def keep(self, stays: Callable[[dict[str, Any]], bool]) -> None:
        """Drops every record but those that stay.

        Raises: CheckpointError where the file cannot be replaced; it then stands as it was.
        """
        kept = [json.dumps(record) + "\n" for record in self.read() if stays(record)]
        atomic_write(self.path, "".join(kept).encode())
        self._waiting.clear()
        self._whole = None

    def _write_waiting(self) -> None:
        while self._waiting:
            self._write(b"".join(self._waiting[:_AT_ONCE]))
            del self._waiting[:_AT_ONCE]

    def _write(self, lines: bytes) -> None:
        """Puts lines at the end of the file, all of them or none."""
        descriptor = os.open(self.path, _FLAGS, 0o666)
        try:
            size = os.lseek(descriptor, 0, os.SEEK_END)
            if self._whole is not None and self._whole < size:
                os.ftruncate(descriptor, self._whole)
            else:
                self._whole = size
            try:
                rest = memoryview(lines)
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
            except OSError:
                with contextlib.suppress(OSError):  # the next write cuts it off before anything else
                    os.ftruncate(descriptor, self._whole)
                raise
        finally:
            os.close(descriptor)
        self._whole = None


def finite(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record with None for numbers that JSON does not have: not-a-number and the infinities."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in record.items()
    }
