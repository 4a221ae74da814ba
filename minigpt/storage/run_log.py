"""An append-only log of JSON lines, none of which is incomplete even if the disk is full."""

import contextlib
import io
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from minigpt.bounded_reading import bounded_lines, open_regular, parse_json
from minigpt.errors import CheckpointError, quoted
from minigpt.storage.files import read_error
from minigpt.storage.folder import Folder, fsync_descriptor, wrap_write_errors
from minigpt.storage.json_record import is_integer, is_number

_LINES_PER_WRITE = 1000


class RunLog:
    """The log at `path`. Lines that cannot be written wait in memory and are written, in order, before later ones.

    `open_folder` returns the folder of the log, through which it is written.

    The file is opened for each write: that costs 10 µs, and network file systems report errors only on close.
    """

    def __init__(self, path: Path, open_folder: Callable[[], Folder] | None = None) -> None:
        self.path = path
        self._open_folder = open_folder or (lambda: Folder(path.parent))
        self._waiting: list[bytes] = []
        self._whole: int | None = None  # after a failed write: how many bytes of the file are whole lines
        self._is_durable = False  # whether the file's name is known to be on disk

    @property
    def unwritten(self) -> int:
        """How many lines wait to be written."""
        return len(self._waiting)

    def append(self, record: Mapping[str, Any]) -> None:
        """Adds one line. If it cannot be written it waits; `read` returns it in either case."""
        self._waiting.append(json.dumps(replace_nonfinite(record), allow_nan=False).encode() + b"\n")
        with contextlib.suppress(OSError):  # `unwritten` and `flush` report it
            self._write_waiting()

    def flush(self) -> None:
        """Writes the waiting lines and flushes the file to disk.

        Raises: CheckpointError if they cannot be written; they continue to wait.
        """
        with wrap_write_errors(self.path):
            self._write_waiting()
            folder = self._open_folder()
            if folder.has(self.path.name):
                descriptor = folder.open_to_append(self.path.name)
                try:
                    fsync_descriptor(descriptor)
                finally:
                    os.close(descriptor)
                if not self._is_durable:
                    folder.sync()
                    self._is_durable = True

    def read(self, problems: list[str] | None = None) -> Iterator[dict[str, Any]]:
        """The records in order, without a last line that a kill cut short.

        With a list of `problems`, damaged lines are skipped, also all of a file that cannot be read, and the list gets
        a sentence on each.
        Raises: CheckpointError without such a list.
        """
        for number, line in enumerate(chain(self._written_lines(problems), self._waiting), 1):
            if not line.endswith(b"\n"):
                continue
            try:
                record = parse_line(line, f"{self.path}, line {number}")
            except CheckpointError as error:
                if problems is None:
                    raise
                problems.append(str(error))
            else:
                yield record

    def _written_lines(self, problems: list[str] | None) -> Iterator[bytes]:
        """The lines in the file up to one that cannot be read; `problems` as in `read`."""
        try:
            with open_regular(self.path) as file:
                yield from bounded_lines(file if self._whole is None else io.BytesIO(file.read(self._whole)))
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            problem = (
                read_error(self.path, error)
                if isinstance(error, OSError)
                else CheckpointError(f"{self.path} cannot be read to its end: {error}; remove that line")
            )
            if problems is None:
                raise problem from error
            problems.append(str(problem))

    def filter(self, keep: Callable[[dict[str, Any]], bool]) -> None:
        """Removes the records for which `keep` is false.

        Raises: CheckpointError if the file cannot be replaced; it is then unchanged.
        """
        kept = [json.dumps(record) + "\n" for record in self.read() if keep(record)]
        with wrap_write_errors(self.path):
            self._open_folder().write(self.path.name, "".join(kept).encode())
        self._waiting.clear()
        self._whole = None

    def move(self, path: Path) -> None:
        """Continues in a new file; the lines that wait are written to it."""
        self.path, self._whole, self._is_durable = path, None, False

    def _write_waiting(self) -> None:
        while self._waiting:
            self._write(b"".join(self._waiting[:_LINES_PER_WRITE]))
            del self._waiting[:_LINES_PER_WRITE]

    def _write(self, lines: bytes) -> None:
        """Appends lines to the file, all of them or none."""
        descriptor = self._open_folder().open_to_append(self.path.name)
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
                with contextlib.suppress(OSError):  # if this fails too, the next write truncates first
                    os.ftruncate(descriptor, self._whole)
                raise
        finally:
            os.close(descriptor)
        self._whole = None


def parse_line(line: bytes, location: str) -> dict[str, Any]:
    """The record in a line.

    Raises: CheckpointError if it is damaged.
    """
    try:
        record = parse_json(line.decode())
    except ValueError as error:
        raise CheckpointError(f"{location} is not JSON ({error}); remove it") from error
    check_line(record, location)
    return record


def replace_nonfinite(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record with None in place of NaN and infinity, which JSON does not have."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in record.items()
    }


Check = Callable[[object], bool]


def check_line(line: object, location: str) -> None:
    """Raises CheckpointError, which begins with `location`, for a line that is damaged."""
    if not isinstance(line, dict) or not is_integer(line.get("step")):
        raise CheckpointError(f"{location}: not a line of a run's log, which has a step; remove the line")
    for name, is_valid in _ENTRIES.items():
        value = line.get(name)
        if value is not None and not is_valid(value):
            raise CheckpointError(f"{location}: {name} is {quoted(value)}, which is not valid; remove the line")
    if line.get("surprise") and len(line["surprise"]) + 1 != len(line.get("passage") or ()):
        raise CheckpointError(f"{location}: passage and surprise do not match in length; remove the line")


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _list_of(is_valid: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(is_valid, value))


def _is_span(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(is_integer, value)) and value[0] <= value[1]


_NUMBERS = (
    "loss",
    "learning_rate",
    "tokens_per_second",
    "seconds",
    "validation_loss",
    "bits_per_byte",
    "copied_share",
)
_ENTRIES: Mapping[str, Check] = {
    **dict.fromkeys(_NUMBERS, is_number),
    **dict.fromkeys(("prompt", "sample"), _is_text),
    **dict.fromkeys(("tokens", "longest_copied_words", "longest_copied_unspaced", "copied_at_least"), is_integer),
    "copied_spans": _list_of(_is_span),
    "passage": _list_of(is_integer),
    "surprise": _list_of(is_number),
}
