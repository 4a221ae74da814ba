"""Finds the files in a folder or of a glob, through links and around subfolders that cannot be read or are models."""

import glob
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from minigpt.bounded_reading import is_of_kernel

_ADAPTER, _CONFIG = "adapter_config.json", "config.json"
_LITTER = ("thumbs.db", "ehthumbs.db", "desktop.ini")
# A folder with a config.json and one of these is a model: a run, a model of Hugging Face's, or an export.
_BESIDE_CONFIG = ("training.json", "*.safetensors", "pytorch_model*.bin", "model.bin", "*.onnx", "*.gguf")


def walk(folder: Path, on_error: Callable[[OSError], object], on_model: Callable[[Path], object]) -> Iterator[Path]:
    """The files in a folder and its subfolders, sorted, without hidden ones and those of other programs; each subfolder
    once, linked ones too.

    `on_error` is called for each folder that cannot be read. A subfolder that is a model is skipped, and `on_model` is
    called for it.
    """
    visited = set()
    for parent, folders, names in os.walk(folder, onerror=on_error, followlinks=True):
        status = Path(parent).stat()
        if (status.st_dev, status.st_ino) in visited:
            folders.clear()
            continue
        visited.add((status.st_dev, status.st_ino))
        if parent != os.fspath(folder) and _is_model(names):
            folders.clear()
            on_model(Path(parent))
            continue
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(parent, name) for name in sorted(names) if not (name.startswith(".") or _is_litter(name)))


def expand(pattern: str, on_model: Callable[[Path], object]) -> Iterator[Path]:
    """The files and folders that a glob matches, sorted, without models and what is in them, and without files of other
    programs.

    A model in a folder that the pattern names, rather than matches, is not skipped: `run/*.txt` finds `run/merges.txt`.
    `on_model` is called for each model that is skipped.
    """
    folders = Path(pattern).parts[:-1]  # of what matches; the name alone may be a link to nothing
    named = Path(*itertools.takewhile(lambda part: not glob.has_magic(part), folders))
    skipped = {named: False}  # by folder

    def is_skipped(folder: Path) -> bool:
        if folder not in skipped:
            is_inside = is_skipped(folder.parent)
            skipped[folder] = is_inside or _is_model(_names_in(folder))
            if skipped[folder] and not is_inside:
                on_model(folder)
        return skipped[folder]

    for path in map(Path, sorted(glob.glob(pattern, recursive=True))):  # noqa: PTH207  (Path.glob takes no absolute pattern)
        if not (_is_litter(path.name) or is_skipped(path if is_folder(path) else path.parent)):
            yield path


def _is_litter(name: str) -> bool:
    """Whether a file of this name was left by Office, which locks an open document, or by Windows' file manager."""
    return name.startswith("~$") or name.lower() in _LITTER


def _names_in(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208  (the names alone)
    except OSError:
        return []


def _is_model(names: Sequence[str]) -> bool:
    """Whether a folder with files of these names is a model or an adapter, and not part of a text."""
    if _ADAPTER in names:
        return True
    return _CONFIG in names and any(fnmatchcase(name, pattern) for name in names for pattern in _BESIDE_CONFIG)


def is_folder(path: Path) -> bool:
    """Whether this is a folder, or a link to one; False if that cannot be known."""
    return os.path.isdir(path)  # noqa: PTH112  (Path.is_dir raises for a link to what may not be read)


def is_file(path: Path) -> bool:
    """Whether this is a regular file, or a link to one, and not the kernel's; False if that cannot be known."""
    return os.path.isfile(path) and not is_of_kernel(path)  # noqa: PTH113  (Path.is_file may raise for a link)
