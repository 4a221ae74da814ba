"""Atomic writes of files and folders, and JSON files."""

import contextlib
import errno
import json
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from minigpt.bounded_reading import read_json_value
from minigpt.errors import CheckpointError, FolderTakenError, reason_of
from minigpt.storage.folder import (
    PROCESS,
    Content,
    fsync,
    host,
    make_folder,
    replace_file,
    temporary_folder_name,
    wrap_write_errors,
)


def exists(path: Path) -> bool:
    """Whether there is a file or a folder at `path`.

    Raises: CheckpointError if this cannot be checked: the path is too long or inside a folder without permission.
    """
    return _status(path) is not None


def modified(path: Path) -> float:
    """When a file was modified, in seconds since 1970; 0 if it does not exist, as one that was just removed.

    Raises: CheckpointError, as `exists`.
    """
    status = _status(path)
    return 0.0 if status is None else status.st_mtime


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise read_error(path, error) from error


def atomic_write(path: Path, content: Content) -> None:
    """Replaces a file atomically, as `Folder.write`; missing folders are created.

    Raises: CheckpointError if the disk is full or the folder cannot be written; the old file is then unchanged.
    """
    with wrap_write_errors(path):
        make_folder(path.parent)
        _remove_unfinished(path)
    replace_file(path, content)


@contextlib.contextmanager
def atomic_folder(path: Path, *, new: bool = False, obsolete: Collection[str] = ()) -> Iterator[Path]:
    """A temporary folder whose files are moved to `path` if the block succeeds, and deleted if it fails.

    A new folder appears complete. In an existing folder each of the files is replaced atomically. The `obsolete` files
    that the block did not write are then removed; other files stay.
    Raises: CheckpointError if the disk is full or the folder cannot be written; FolderTakenError if the folder exists
    and `new` is set, or another process creates it in the meantime.
    """
    replaces_files = not new and path.exists()
    building = path.with_name(temporary_folder_name(path.name))
    with wrap_write_errors(path):
        shutil.rmtree(building, ignore_errors=True)
        make_folder(path.parent)
        _remove_unfinished(path)
        building.mkdir()
        try:
            yield building
            files = sorted(building.iterdir())
            for file in files:
                fsync(file)
            fsync(building)
            if replaces_files:
                for file in files:
                    file.replace(path / file.name)
                for name in set(obsolete) - {file.name for file in files}:
                    (path / name).unlink(missing_ok=True)
                fsync(path)
            else:
                _rename_to_new(building, path)
                fsync(path.parent)
        except FolderTakenError:
            raise
        except CheckpointError as error:  # name the folder that the caller asked for
            raise CheckpointError(str(error).replace(str(building), str(path))) from error
        finally:
            shutil.rmtree(building, ignore_errors=True)


def _remove_unfinished(path: Path) -> None:
    """Removes the temporary files and folders of killed processes that were to become `path`.

    Links stay, and folders of other hosts, whose processes cannot be checked.
    """
    of_folder = rf"\.{host()}_(?P<process>[0-9a-f]+)(\.\w+)?"
    pattern = re.compile(re.escape(f".{path.name}.") + rf"(?P<pid>\d{{1,9}})({of_folder})?\.tmp")
    for other in list(path.parent.iterdir()):
        match = pattern.fullmatch(other.name)
        if match is None or other.is_symlink() or _is_running(int(match["pid"]), match["process"]):
            continue
        if not other.is_dir():
            other.unlink()
        elif match["process"]:
            shutil.rmtree(other)


def _is_running(pid: int, process: str | None) -> bool:
    """Whether a process of this host runs; `process` tells this one from an earlier one with the same pid."""
    import psutil  # 15 ms, and a name that needs it is rare

    return psutil.pid_exists(pid) and (pid != os.getpid() or process in (None, PROCESS))


def _rename_to_new(building: Path, path: Path) -> None:
    taken = FolderTakenError(f"{path} already exists; choose another name")
    if path.exists():  # a rename would replace an empty folder
        raise taken
    try:
        building.rename(path)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise taken from error
        raise


def json_bytes(value: Mapping[str, Any]) -> bytes:
    """An indented JSON object as the content of a file."""
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    return text.encode(errors="backslashreplace")  # \udcff for a byte of a file name that is not UTF-8


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises: CheckpointError if the file is missing, unreadable, or not a JSON object.
    """
    try:
        value = read_json_value(path)
    except OSError as error:
        raise read_error(path, error) from error
    except ValueError as error:  # includes UnicodeDecodeError and JSONDecodeError
        raise CheckpointError(f"{path} is not JSON ({error}); copy or download it again") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} must hold a JSON object, not a {type(value).__name__}")
    return value


def lfs_pointer_error(path: Path) -> CheckpointError:
    """The error for a file that Git LFS has not replaced by its content."""
    return CheckpointError(f"{path} is a Git LFS pointer instead of the tensors; run `git lfs pull` in its folder")


def truncated_error(path: Path) -> CheckpointError:
    """The error for a file that became shorter after it was opened."""
    return CheckpointError(f"{path} was truncated while it was read; copy or download it again")


def read_error(path: Path, error: OSError) -> CheckpointError:
    """The error for a file that the system cannot read."""
    if isinstance(error, FileNotFoundError):
        return CheckpointError(f"{path} does not exist")
    return CheckpointError(f"{path} could not be read ({reason_of(error)})")
