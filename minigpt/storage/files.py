"""Files that are whole or not there: atomic writes and JSON; it knows neither tensors nor checkpoints."""

import contextlib
import errno
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from minigpt.errors import CheckpointError, FolderTakenError

if sys.platform == "darwin":
    import fcntl


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns what the operating system says against writing `path` into one sentence."""
    try:
        yield
    except CheckpointError:  # an OSError too, and explained already
        raise
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        mend = "free some space or write elsewhere" if full else "choose a place that can be written"
        mend = "raise the limit on a file's size (ulimit -f)" if error.errno == errno.EFBIG else mend
        reason = (error.strerror or str(error)).lower()
        raise CheckpointError(f"{path} could not be written ({reason}); {mend}") from error


def exists(path: Path) -> bool:
    """Whether there is a file or a folder at a path.

    Raises: CheckpointError where that cannot be known: the path is too long, or leads through a closed folder.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise unreadable(path, error) from error
    return True


def sync(path: Path) -> None:
    """Makes a file's content, or the names in a folder, survive a power cut, where the system can."""
    if os.name == "nt":  # Windows opens no folders
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        _flush(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems sync no folders
            raise
    finally:
        os.close(descriptor)


def _flush(descriptor: int) -> None:
    """Waits until the disk itself has what was written, in macOS too, where fsync leaves it in the disk's cache."""
    os.fsync(descriptor)
    if sys.platform == "darwin":
        with contextlib.suppress(OSError):  # what some file systems do not know
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)


def _beside(path: Path, ending: str) -> Path:
    """A hidden name in the same folder, this process's own."""
    return path.with_name(f".{path.name}.{os.getpid()}.{ending}")


def sweep(folder: Path) -> None:
    """Removes what writers that were killed left behind in a folder that nobody else writes to now."""
    with explained(folder):
        for path in folder.glob(".*.tmp"):
            path.unlink()


def atomic_write(path: Path, content: bytes | Callable[[BinaryIO], object]) -> None:
    """Puts a file in place all at once; whoever reads `path` sees the old one or the whole new one, never a part.

    `content` is the bytes, or a function that writes them to the open file. Missing folders are made.
    Raises: CheckpointError where the disk is full or the place cannot be written; the old file then stands.
    """
    temporary = _beside(path, "tmp")
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                if callable(content):
                    content(file)
                else:
                    file.write(content)
                file.flush()
                _flush(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        sync(path.parent)


@contextlib.contextmanager
def atomic_folder(path: Path, *, new: bool = False) -> Iterator[Path]:
    """A folder to fill with files, which become `path`'s when the block ends well and vanish when it does not.

    A new folder appears as a whole; in one that stands, each of the files is replaced as a whole, the rest stays.
    Raises: CheckpointError where the disk is full or the place cannot be written; FolderTakenError where the folder is
    not `new` though it was to be, or is no longer.
    """
    stands = not new and path.exists()
    building = _beside(path, "tmp")
    with explained(path):
        shutil.rmtree(building, ignore_errors=True)  # of a process killed long ago that had this one's number
        building.mkdir(parents=True)
        try:
            yield building
            files = sorted(building.iterdir())
            for file in files:
                sync(file)
            if stands:
                for file in files:
                    file.replace(path / file.name)
                sync(path)
            else:
                _rename_to_new(building, path)
                sync(path.parent)
        except FolderTakenError:
            raise
        except CheckpointError as error:  # say it of the place that the caller knows
            raise CheckpointError(str(error).replace(str(building), str(path))) from error
        finally:
            shutil.rmtree(building, ignore_errors=True)


def _rename_to_new(building: Path, path: Path) -> None:
    taken = FolderTakenError(f"{path} could not be made: it is there already; choose another name")
    if path.exists():  # an empty folder would be replaced
        raise taken
    try:
        building.rename(path)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise taken from error
        raise


def atomic_json(path: Path, value: Mapping[str, Any]) -> None:
    """Writes a JSON object, indented, all at once.

    Raises: CheckpointError, as `atomic_write`.
    """
    atomic_write(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises: CheckpointError where it is missing, unreadable, or not a JSON object.
    """
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError among them
        raise CheckpointError(f"{path} is not JSON ({error}); copy or download it again") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} must hold a JSON object, not a {type(value).__name__}")
    return value


def cut_short(path: Path) -> CheckpointError:
    """What to raise for a file that ended sooner than it said when it was opened."""
    return CheckpointError(f"{path} was cut short while it was read; copy or download it again")


def unreadable(path: Path, error: OSError) -> CheckpointError:
    """What to raise for a file that the system does not let be read."""
    if isinstance(error, FileNotFoundError):
        return CheckpointError(f"{path} is not there")
    return CheckpointError(f"{path} could not be read ({(error.strerror or str(error)).lower()})")
