"""Decompresses Zstandard files such as `.jsonl.zst`: by Python 3.14, before that by the package backports.zstd.

Both raise EOFError for a file that ends too early, which other packages read as if it was complete.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, BinaryIO

from minigpt.errors import DataError
from minigpt.optional_packages import optional_import

MAGIC = b"\x28\xb5\x2f\xfd"  # the first bytes of a file

_LARGEST_WINDOW = 27  # log2 of the bytes of decompressed text that are kept in memory, as in the program zstd


@contextmanager
def open_zstd(raw: BinaryIO, name: str) -> Iterator[Any]:
    """The decompressed bytes of a stream; `name` is what errors call it.

    Raises: MissingPackageError before Python 3.14 without the package; in the block, EOFError for a truncated file and
    DataError for a damaged one.
    """
    zstd = _module(name)
    try:
        yield zstd.ZstdFile(raw, options={zstd.DecompressionParameter.window_log_max: _LARGEST_WINDOW})
    except zstd.ZstdError as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{name} cannot be decompressed by zstd ({reason}); download or compress it again") from error


def _module(name: str) -> Any:
    if sys.version_info >= (3, 14):
        from compression import zstd

        return zstd
    with optional_import(f"reading {name}, a zstd file,", "backports.zstd", instead="decompress it with zstd -d"):
        return import_module("backports.zstd")
