"""Reads the lines that are added to a run's log while the run trains, in another thread or another process."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from minigpt.bounded_reading import MAX_LINE, open_regular
from minigpt.errors import CheckpointError
from minigpt.storage.run_log import parse_line


class LogFollower:
    """Reads a log from its start, and later what was added to it. `path` returns where the log is at present."""

    def __init__(self, path: Callable[[], Path]) -> None:
        self._path = path
        self._offset = 0  # of the first line that was not read yet
        self._file: tuple[int, int] | None = None  # device and inode: a log that is cut back becomes another file

    def read(self) -> tuple[list[dict[str, Any]], bool]:
        """The lines since the last call, and whether the log has begun again, so that all earlier lines are void.

        Damaged lines are skipped. A line that is still being written, or a log that cannot be read, is left for later.
        """
        path = self._path()
        lines: list[dict[str, Any]] = []
        restarted = False
        try:
            with open_regular(path) as file:
                status = os.fstat(file.fileno())
                identity = (status.st_dev, status.st_ino)
                if self._file != identity or status.st_size < self._offset:
                    restarted = self._file is not None
                    self._file, self._offset = identity, 0
                file.seek(self._offset)
                while (line := file.readline(MAX_LINE + 1)).endswith(b"\n"):
                    self._offset += len(line)
                    try:
                        lines.append(parse_line(line, str(path)))
                    except CheckpointError:
                        continue
        except OSError:
            return lines, restarted
        return lines, restarted
