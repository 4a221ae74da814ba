"""A lock that lets one process at a time train in a run's folder.

The lock is filelock's: the kernel's, which ends with its process even after `kill -9`, or on a file system without
locks a file that names its owner. A JSON file next to it says for a refusal who trains there.
"""

import contextlib
import errno
import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

from minigpt.bounded_reading import read_json_value
from minigpt.errors import CheckpointError, reason_of
from minigpt.storage.files import json_bytes
from minigpt.storage.folder import Folder

if TYPE_CHECKING:
    from filelock import BaseFileLock

# The errors of file systems without locks, of which filelock itself handles only ENOSYS.
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
_OWNER = ".lock.json"


class RunLock:
    """The right to train in a folder; it ends with `release`, garbage collection or the end of the process.

    Two objects of one process exclude each other. A forked child does not hold its parent's lock.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / ".lock"
        self.folder: Folder | None = None  # while the lock is held
        self._lock: BaseFileLock | None = None

    @property
    def is_held(self) -> bool:
        """Whether this object holds the lock in this process."""
        return self._lock is not None and self._lock.is_locked

    def acquire(self) -> None:
        """Acquires the lock without waiting; does nothing if this object holds it.

        Raises: CheckpointError if another process or object holds it, the folder cannot be written, or `.lock` is a
        link or another file than the empty one that minigpt creates.
        """
        from filelock import FileLock, SoftFileLock, Timeout  # 0.1 s to import, and only training needs it

        if self.is_held:
            return
        try:
            folder = Folder(self.directory)
            if folder.has(self.path.name) and not folder.is_empty_file(self.path.name):  # filelock may truncate it
                raise CheckpointError(f"{self.path} is not the empty file that minigpt creates; remove it")
            lock: BaseFileLock = FileLock(self.path, timeout=0, thread_local=False, fallback_to_soft=False)
            try:
                lock.acquire()
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                # Long enough to take over the file of an ended process.
                lock = SoftFileLock(f"{self.path}.owner", timeout=0.2, thread_local=False)
                lock.acquire()
        except CheckpointError:  # is an OSError too, and already says what to do
            raise
        except Timeout as error:
            raise self._refusal(lock) from error
        except OSError as error:
            raise CheckpointError(
                f"{self.path} could not be written ({reason_of(error)}); training needs a writable folder"
            ) from error
        self.folder, self._lock = folder, lock
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        with contextlib.suppress(CheckpointError):  # on a full disk only the message of a refusal lacks the owner
            folder.write(_OWNER, json_bytes(owner), durable=False)

    def release(self) -> None:
        """Releases the lock; does nothing if this object does not hold it."""
        if self._lock is not None and self.folder is not None and self.is_held:
            with contextlib.suppress(OSError):
                self.folder.remove(_OWNER)
            with contextlib.suppress(OSError):
                self._lock.release(force=True)
        self.folder = self._lock = None

    def _refusal(self, lock: "BaseFileLock") -> CheckpointError:
        who, fix = "another process", "wait for it or stop it"
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            owner = read_json_value(self.directory / _OWNER)
            who = f"process {owner['pid']} on {owner['host']} since {owner['since']}"
            if (owner["pid"], owner["host"]) == (os.getpid(), socket.gethostname()):
                who, fix = "this process already", "close that run first"
        if lock.lock_file != str(self.path):
            fix += f", or remove {lock.lock_file} if it has ended"
        return CheckpointError(f"{self.directory} is being trained by {who}; {fix}")
