"""Bounds-checked reading of byte ranges of a file into torch memory."""

import mmap
import os
import weakref
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from minigpt.bounded_reading import open_regular
from minigpt.errors import CheckpointError
from minigpt.storage.files import read_error, truncated_error


class ByteFile:
    """An open file and its size, which is closed with the last reference to it.

    `read` copies bytes instead of mapping them: if another program truncates a mapped file, the next access to it
    kills the process.
    Raises: CheckpointError if the file is missing, cannot be read, or is a pipe or a device.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._mapped: mmap.mmap | None = None
        try:
            self._file = open_regular(path)
            self.size = os.fstat(self._file.fileno()).st_size
        except OSError as error:
            raise read_error(path, error) from error
        weakref.finalize(self, self._file.close)

    def take(self, count: int) -> bytes:
        """The next `count` bytes, counted from the start of the file; fewer if the file ends.

        Raises: CheckpointError if the file cannot be read.
        """
        try:
            return self._file.read(min(count, self.size))
        except OSError as error:
            raise read_error(self.path, error) from error

    def read(self, start: int, size: int, *, reuse_buffer: bool = False) -> Tensor:
        """The `size` bytes from `start`: (size,) uint8.

        With `reuse_buffer` they lie in a buffer that the next such read overwrites, else in new memory.
        Raises: CheckpointError if the file does not have them all.
        """
        self.check_range(start, size)
        if reuse_buffer:
            if len(self._buffer) < size:
                self._buffer = torch.empty(size, dtype=torch.uint8)
            content = self._buffer[:size]
        else:
            content = torch.empty(size, dtype=torch.uint8)
        try:
            self._file.seek(start)
            count = self._file.readinto(content.numpy().data)
        except OSError as error:
            raise read_error(self.path, error) from error
        if count != size:
            raise truncated_error(self.path)
        return content

    def check_range(self, start: int, size: int) -> None:
        """Checks that the file has the `size` bytes from `start`.

        Raises: CheckpointError if it does not.
        """
        if start + size > self.size:
            raise CheckpointError(
                f"{self.path} has {self.size} bytes, but {size} bytes from byte {start} on are needed;"
                " copy or download it again"
            )

    def map(self) -> mmap.mmap:
        """The file, memory-mapped once; writes change only this process's copy.

        Raises: CheckpointError if the file cannot be mapped or became shorter.
        """
        if self._mapped is None:
            try:
                self._mapped = mmap.mmap(self._file.fileno(), self.size, access=mmap.ACCESS_COPY)
            except OSError as error:
                raise read_error(self.path, error) from error
            except ValueError as error:  # the file is shorter
                raise truncated_error(self.path) from error
        return self._mapped

    def close(self) -> None:
        """Closes the file; what was mapped stays valid."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
