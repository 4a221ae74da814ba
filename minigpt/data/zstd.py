"""Decompresses Zstandard files such as `.jsonl.zst`: by Python 3.14, before that by the package backports.zstd.

Both raise EOFError for a file that ends too early, which other packages read as if it was complete.
"""

import sys
from importlib import import_module
from io import BufferedReader, RawIOBase
from typing import Any, BinaryIO, cast

from minigpt.optional_packages import optional_import

MAGIC = b"\x28\xb5\x2f\xfd"  # the first bytes of a file

_LARGEST_WINDOW = 27  # log2 of the bytes of decompressed text that are kept in memory, as in the program zstd


class ZstdDamagedError(Exception):
    """A file that cannot be decompressed."""


def open_zstd(raw: BinaryIO, name: str) -> BufferedReader:
    """The decompressed bytes of a stream; `name` is what errors call it.

    Reading raises EOFError for a truncated file, ZstdDamagedError for a damaged one.
    Raises: MissingPackageError before Python 3.14 without the package.
    """
    zstd = _module(name)

    class Reader(RawIOBase):
        def __init__(self) -> None:
            options = {zstd.DecompressionParameter.window_log_max: _LARGEST_WINDOW}
            self._file = zstd.ZstdFile(raw, options=options)

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            try:
                block = self._file.read(len(buffer))
            except zstd.ZstdError as error:
                raise ZstdDamagedError(" ".join(str(error).split())) from error
            buffer[: len(block)] = block
            return len(block)

    return BufferedReader(cast("Any", Reader()), 1 << 17)


def _module(name: str) -> Any:
    if sys.version_info >= (3, 14):
        from compression import zstd

        return zstd
    with optional_import(f"reading {name}, a zstd file,", "backports.zstd", instead="decompress it with zstd -d"):
        return import_module("backports.zstd")
