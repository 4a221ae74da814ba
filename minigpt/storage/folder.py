"""A folder that minigpt writes to: files are replaced atomically, and nothing is written through a symbolic link."""

import contextlib
import errno
import functools
import os
import re
import shutil
import stat
import sys
import weakref
import zlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import BinaryIO

from minigpt.errors import CheckpointError, reason_of

if sys.platform == "darwin":
    import fcntl

Content = bytes | Callable[[BinaryIO], object]
"""The content of a file: its bytes, or a function that writes them to the open file."""

# Windows has neither: there, links are refused by the check before each call, and calls go by path.
_HAS_DIR_FD = {os.open, os.stat, os.mkdir, os.unlink, os.rename} <= os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # opening a named pipe must not wait
_BINARY = getattr(os, "O_BINARY", 0)  # Windows would change line ends
PROCESS = os.urandom(4).hex()  # tells this process from an earlier one with the same id


@functools.cache
def host() -> str:
    """Eight hexadecimal digits for the name of this host, and for its processes' namespace if it is a container.

    Hosts that share a disk, and containers with the same host name, have processes with the same ids.
    """
    import socket  # most commands write no folder

    namespace = ""
    with contextlib.suppress(OSError):
        namespace = str(Path("/proc/self/ns/pid").readlink())
    return f"{zlib.crc32(f'{socket.gethostname()} {namespace}'.encode()):08x}"


def temporary_folder_name(name: str) -> str:
    """The hidden name of a folder that is to become `name`, or was it; only this process has it."""
    return f".{name}.{os.getpid()}.{host()}_{PROCESS}.tmp"


@contextlib.contextmanager
def wrap_write_errors(path: Path) -> Iterator[None]:
    """Turns an OSError while `path` is written into a CheckpointError that says what to do."""
    try:
        yield
    except CheckpointError:  # is an OSError too, and already says what to do
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            fix = "free some space or write elsewhere"
        elif error.errno == errno.EFBIG:
            fix = "raise the limit on a file's size (ulimit -f)"
        else:
            fix = "choose a folder that can be written"
        raise CheckpointError(f"{path} could not be written ({reason_of(error)}); {fix}") from error


class Folder:
    """An open folder. Reading goes by path as usual; whatever changes files below a run's folder goes through here.

    The folder itself may be a link that the user made, but nothing below it is written, truncated or deleted through a
    link. If the folder is deleted, moved or replaced, every write is refused.
    Raises: OSError if it cannot be opened.
    """

    def __init__(self, path: Path, *, inside: "Folder | None" = None) -> None:
        self.path = path
        self._descriptor: int | None = None
        if sys.platform != "win32" and _HAS_DIR_FD:
            flags = os.O_RDONLY | os.O_DIRECTORY
            self._descriptor = os.open(path, flags) if inside is None else inside._open(path.name, flags)
            weakref.finalize(self, _close, self._descriptor)
        self._identity = path.stat() if self._descriptor is None else os.fstat(self._descriptor)

    def is_in_place(self) -> bool:
        """Whether this folder is still the one at its path; True if that cannot be checked."""
        try:
            return os.path.samestat(self._identity, self.path.stat())
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # the write will report it
            return True

    def subfolder(self, name: str) -> "Folder":
        """The folder of this name, which is created if it is missing.

        Raises: CheckpointError if it is a link or cannot be created.
        """
        with wrap_write_errors(self.path / name):
            self._check_in_place()
            self._refuse_link(name)
            try:
                os.mkdir(self._at(name), dir_fd=self._descriptor)
            except FileExistsError:
                pass
            else:
                self.sync()
            return Folder(self.path / name, inside=self)

    def write(self, name: str, content: Content, *, durable: bool = True) -> None:
        """Replaces a file atomically: readers see the old file or the complete new one. A link is replaced itself.

        Unless it is `durable`, the new file may be lost in a power cut.
        Raises: CheckpointError if the disk is full or the folder cannot be written; the old file is then unchanged.
        """
        temporary = f".{name}.{os.getpid()}.tmp"
        with wrap_write_errors(self.path / name):
            self._check_in_place()
            self._unlink(temporary)  # of a killed process that had the same pid
            try:
                descriptor = self._open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
                # The file is opened under its path, which programs that write GGUF read from `file.name`.
                with open(self.path / temporary, "wb", opener=lambda *_: descriptor) as file:
                    if callable(content):
                        content(file)
                    else:
                        file.write(content)
                    file.flush()
                    if durable:
                        fsync_descriptor(file.fileno())
                folder = self._descriptor
                os.replace(self._at(temporary), self._at(name), src_dir_fd=folder, dst_dir_fd=folder)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    self._unlink(temporary)
            if durable:
                self.sync()

    def open_to_append(self, name: str) -> int:
        """A descriptor that appends to a file, which is created if it is missing.

        Raises: CheckpointError if the file is a link or a special file; OSError.
        """
        self._check_in_place()
        descriptor = self._open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise CheckpointError(f"{self.path / name} is not a regular file; remove it")
        return descriptor

    def remove(self, name: str) -> None:
        """Removes a file, or a link itself, if it exists.

        Raises: OSError.
        """
        self._unlink(name)

    def remove_folder(self, name: str) -> None:
        """Removes a folder in this one with everything in it; links in it are removed, and what they lead to stays.

        It gets a hidden name first, so that it is there whole or not at all, whenever the process is killed.
        Raises: CheckpointError if it is a link, or this folder was deleted, moved or replaced; OSError.
        """
        hidden = temporary_folder_name(name)
        self._check_in_place()
        self._refuse_link(name)
        os.rename(self._at(name), self._at(hidden), src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
        shutil.rmtree(self._at(hidden), dir_fd=self._descriptor)
        self.sync()

    def remove_temporary_files(self, names: Collection[str]) -> None:
        """Removes the temporary files of these names that killed processes left; call it while no process writes here.

        Links and folders stay.
        Raises: CheckpointError if one cannot be removed.
        """
        with wrap_write_errors(self.path):
            for name in [path.name for path in self.path.iterdir()]:
                match = re.fullmatch(r"\.(.+)\.\d+\.tmp", name)
                found = self._lstat(name) if match and match[1] in names else None
                if found is not None and stat.S_ISREG(found.st_mode):
                    self._unlink(name)

    def is_empty_file(self, name: str) -> bool:
        """Whether there is a regular file without content at this name; False for a link."""
        found = self._lstat(name)
        return found is not None and stat.S_ISREG(found.st_mode) and found.st_size == 0

    def has(self, name: str) -> bool:
        """Whether there is anything at this name, even a link that leads nowhere."""
        return self._lstat(name) is not None

    def sync(self) -> None:
        """Flushes the list of names to disk, if the file system can."""
        fsync(self.path) if self._descriptor is None else _fsync_if_possible(self._descriptor)

    def _open(self, name: str, flags: int) -> int:
        self._refuse_link(name)  # for a message that says more than the system's
        return os.open(self._at(name), flags | _NO_LINK | _BINARY, 0o666, dir_fd=self._descriptor)

    def _unlink(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._at(name), dir_fd=self._descriptor)

    def _lstat(self, name: str) -> os.stat_result | None:
        try:
            return os.stat(self._at(name), dir_fd=self._descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def _at(self, name: str) -> str:
        """The name as the system's functions take it, next to `dir_fd`."""
        return str(self.path / name) if self._descriptor is None else name

    def _refuse_link(self, name: str) -> None:
        found = self._lstat(name)
        if found is not None and stat.S_ISLNK(found.st_mode):
            raise CheckpointError(
                f"{self.path / name} is a symbolic link, and minigpt writes only inside {self.path}; replace the link "
                "by what it leads to, or remove it"
            )

    def _check_in_place(self) -> None:
        if not self.is_in_place():
            raise CheckpointError(f"{self.path} was deleted, moved or replaced while it was in use")


def _close(descriptor: int) -> None:
    with contextlib.suppress(OSError):  # a folder has no content that closing could lose
        os.close(descriptor)


def replace_file(path: Path, content: Content) -> None:
    """Replaces a file in an existing folder, as `Folder.write`.

    Raises: CheckpointError if the file cannot be written; the old file is then unchanged.
    """
    with wrap_write_errors(path):
        folder = Folder(path.parent)
    folder.write(path.name, content)


def make_folder(path: Path) -> None:
    """Creates a folder and those above it that are missing, so that they survive a power cut.

    Raises: OSError.
    """
    if not path.exists():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        fsync(path.parent)


def fsync(path: Path) -> None:
    """Flushes a file's content, or a folder's list of names, to disk, if the file system can."""
    if os.name == "nt":  # Windows cannot open folders
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        _fsync_if_possible(descriptor)
    finally:
        os.close(descriptor)


def _fsync_if_possible(descriptor: int) -> None:
    try:
        fsync_descriptor(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems cannot flush folders
            raise


def fsync_descriptor(descriptor: int) -> None:
    """Flushes to the disk itself; on macOS, os.fsync leaves the data in the disk's cache."""
    os.fsync(descriptor)
    if sys.platform == "darwin":
        with contextlib.suppress(OSError):  # some file systems do not support it
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
