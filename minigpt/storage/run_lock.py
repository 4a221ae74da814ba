"""A lock that lets one process at a time train in a run's folder.

The lock is the kernel's, through filelock, so it ends with its process, even after `kill -9`. A JSON file next to it
names that process. If the file system has no locks, only the JSON file counts: the folder is free if the process in it
no longer exists.
"""

import contextlib
import errno
import os
import socket
import sys
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minigpt.bounded_reading import read_json_value
from minigpt.errors import CheckpointError, reason_of
from minigpt.storage.files import json_bytes
from minigpt.storage.folder import Folder
from minigpt.storage.json_record import is_integer, is_text

if TYPE_CHECKING:
    from filelock import BaseFileLock

# The errors of file systems without locks. filelock handles only ENOSYS, so the fallback for all of them is here.
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}

_LARGEST_PID = 2**31 - 1


class RunLock:
    """The right to train in a folder; it ends with `release`, garbage collection or the end of the process.

    Two objects of one process exclude each other. A forked child does not hold its parent's lock.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / ".lock"
        self.owner_path = directory / ".lock.json"
        self.folder: Folder | None = None  # while the lock is held
        self._releaser: weakref.finalize[..., RunLock] | None = None
        self._pid = 0

    @property
    def is_held(self) -> bool:
        """Whether this object holds the lock in this process."""
        return self._releaser is not None and self._releaser.alive and self._pid == os.getpid()

    def acquire(self) -> None:
        """Acquires the lock without waiting; does nothing if this object holds it.

        Raises: CheckpointError if another process or object holds it, the folder cannot be written, or `.lock` is a
        link or another file than the empty one that minigpt creates.
        """
        if self.is_held:
            return
        folder = self._open_folder()
        kernel_lock = self._acquire_kernel_lock()
        self._pid = os.getpid()
        owner = {"pid": self._pid, "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        try:
            folder.write(self.owner_path.name, json_bytes(owner), durable=False)
        except CheckpointError:
            if kernel_lock is None:
                raise
            # On a full disk the kernel's lock still works; only the message of a refusal lacks the owner.
        self.folder = folder
        self._releaser = weakref.finalize(self, _release, kernel_lock, folder, self.owner_path.name, self._pid)
        _held.add(self)

    def release(self) -> None:
        """Releases the lock; does nothing if this object does not hold it."""
        if self._releaser is not None:
            self._releaser()
        self.folder = None
        _held.discard(self)

    def _open_folder(self) -> Folder:
        """The folder to lock, in which `.lock` is what minigpt creates or missing: acquiring the lock truncates it."""
        try:
            folder = Folder(self.directory)
            if folder.has(self.path.name) and not folder.is_empty_file(self.path.name):
                raise CheckpointError(f"{self.path} is not the empty file that minigpt creates; remove it")
        except CheckpointError:
            raise
        except OSError as error:
            raise self._not_writable(error) from error
        return folder

    def _acquire_kernel_lock(self) -> "BaseFileLock | None":
        """The kernel's lock; None if the file system has no locks and no process holds the folder.

        Raises: as `acquire`.
        """
        from filelock import FileLock, Timeout  # 0.1 s to import, and only training needs it

        lock = FileLock(self.path, timeout=0, thread_local=False, fallback_to_soft=False)
        try:
            lock.acquire()
        except Timeout as error:
            raise self._refusal(by_kernel=True) from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise self._not_writable(error) from error
            if not self._owner_has_ended():
                raise self._refusal(by_kernel=False) from error
            return None
        return lock

    def _owner_has_ended(self) -> bool:
        """Whether the recorded owner no longer exists; False for one on another machine, which cannot be checked."""
        owner = self._read_owner()
        if not owner:
            return True
        if owner["host"] != socket.gethostname():
            return False
        if owner["pid"] == os.getpid():  # this process, or an earlier one with the same pid
            return not any(lock.directory == self.directory for lock in _held)
        return not _process_exists(owner["pid"])

    def _read_owner(self) -> dict[str, Any]:
        """The recorded owner; empty if none is recorded, or its record is damaged or being written."""
        try:
            owner = read_json_value(self.owner_path)
        except (OSError, ValueError):
            return {}
        if not isinstance(owner, dict) or not {"pid", "host", "since"} <= owner.keys():
            return {}
        return owner if is_integer(owner["pid"], 1, _LARGEST_PID) and is_text(owner["host"]) else {}

    def _refusal(self, *, by_kernel: bool) -> CheckpointError:
        owner = self._read_owner()
        if owner and (owner["pid"], owner["host"]) == (os.getpid(), socket.gethostname()):
            return CheckpointError(f"{self.directory} is being trained by this process already; close that run first")
        who = "process {pid} on {host} since {since}".format(**owner) if owner else "another process"
        fix = "wait for it or stop it" + ("" if by_kernel else f", or remove {self.owner_path} if it has ended")
        return CheckpointError(f"{self.directory} is being trained by {who}; {fix}")

    def _not_writable(self, error: OSError) -> CheckpointError:
        reason = reason_of(error)
        return CheckpointError(f"{self.path} could not be written ({reason}); training needs a writable folder")


def _release(kernel_lock: "BaseFileLock | None", folder: Folder, owner_name: str, pid: int) -> None:
    if os.getpid() != pid:  # a forked child: filelock has closed its copy of the descriptor
        return
    with contextlib.suppress(OSError):
        folder.remove(owner_name)
    if kernel_lock is not None:
        with contextlib.suppress(OSError):
            kernel_lock.release(force=True)


def _process_exists(pid: int) -> bool:
    if sys.platform == "win32":  # os.kill(pid, 0) would end the process there
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it belongs to another user
        return True
    return True


_held: weakref.WeakSet[RunLock] = weakref.WeakSet()
