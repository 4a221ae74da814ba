"""Finds the files in a folder, through links and around subfolders that cannot be read."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path


def walk(folder: str | Path, on_error: Callable[[OSError], object] | None = None) -> Iterator[Path]:
    """The files in a folder and its subfolders, sorted, without hidden ones; each subfolder once, linked ones too.

    `on_error` is called for each folder that cannot be read.
    """
    visited = set()
    for parent, folders, names in os.walk(folder, onerror=on_error, followlinks=True):
        status = Path(parent).stat()
        if (status.st_dev, status.st_ino) in visited:
            folders.clear()
            continue
        visited.add((status.st_dev, status.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(parent, name) for name in sorted(names) if not name.startswith("."))


def is_folder(path: Path) -> bool:
    """Whether this is a folder, or a link to one; False if that cannot be known."""
    return os.path.isdir(path)  # noqa: PTH112  (Path.is_dir raises for a link to what may not be read)


def is_file(path: Path) -> bool:
    """Whether this is a regular file, or a link to one; False if that cannot be known."""
    return os.path.isfile(path)  # noqa: PTH113  (Path.is_file raises for a link to what may not be read)
