"""A file of which ranges of bytes are read, none outside of it; it knows no format."""

import os
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from minigpt.errors import CheckpointError
from minigpt.storage.files import cut_short, unreadable


class ByteFile:
    """A file held open, with its size.

    Its bytes are read, not mapped: a mapped file that is cut short kills the process.
    Raises: CheckpointError where the file is missing or unreadable.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._scratch = torch.empty(0, dtype=torch.uint8)
        try:
            self._file = path.open("rb")
            self.size = os.fstat(self._file.fileno()).st_size
        except OSError as error:
            raise unreadable(path, error) from error

    def take(self, count: int) -> bytes:
        """The next bytes, from the start of the file on: fewer only where it ends."""
        try:
            return self._file.read(min(count, self.size))
        except OSError as error:
            raise unreadable(self.path, error) from error

    def read(self, start: int, size: int) -> Tensor:
        """The bytes from `start` on, in memory of their own.

        Raises: CheckpointError where they are not all there.
        """
        self.check(start, size)
        return self._read(start, size, torch.empty(size, dtype=torch.uint8))

    def borrow(self, start: int, size: int) -> Tensor:
        """The bytes from `start` on, in memory that the next borrowing overwrites.

        Raises: as `read`.
        """
        self.check(start, size)
        if len(self._scratch) < size:
            self._scratch = torch.empty(size, dtype=torch.uint8)
        return self._read(start, size, self._scratch[:size])

    def check(self, start: int, size: int) -> None:
        """Makes sure that the file has the bytes from `start` on.

        Raises: CheckpointError where it ends before.
        """
        if start + size > self.size:
            raise CheckpointError(
                f"{self.path} ends after {self.size} bytes, expected {size} from byte {start} on;"
                " copy or download it again"
            )

    def _read(self, start: int, size: int, buffer: Tensor) -> Tensor:
        try:
            self._file.seek(start)
            read = self._file.readinto(buffer.numpy().data)
        except OSError as error:
            raise unreadable(self.path, error) from error
        if read != size:
            raise cut_short(self.path)
        return buffer

    def close(self) -> None:
        """Lets go of the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
