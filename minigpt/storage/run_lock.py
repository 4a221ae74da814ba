"""One process at a time in a folder, by a lock that dies with its owner; it knows nothing of what is done there.

The lock is the operating system's own, on a file that stays: when its owner ends, by `kill -9` or a power cut too, the
kernel lets go of it, so that a file left behind is in nobody's way. What the file says is for the message alone, except
on file systems without locks: there, whoever it names is asked whether he still lives.
"""

import contextlib
import errno
import json
import os
import socket
import sys
import time
import weakref
from pathlib import Path
from typing import Any

from minigpt.errors import CheckpointError

if sys.platform == "win32":
    import msvcrt

    _FAR = 1 << 30  # the byte that is locked, far behind the text: others can read only what is not locked

    def _lock(descriptor: int) -> bool:
        os.lseek(descriptor, _FAR, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        return True

    def _unlock(descriptor: int) -> None:
        os.lseek(descriptor, _FAR, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

    def _lives(_: int) -> bool:  # os.kill(pid, 0) would end the process here
        return True
else:
    import fcntl

    def _lock(descriptor: int) -> bool:
        """Whether the file is locked now, by us; False where another has it."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _unlock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing would not be enough if a child has the descriptor too

    def _lives(pid: int) -> bool:
        """Whether a process of this machine runs."""
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # it is somebody else's
            return True
        return True


_WITHOUT_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}  # what such file systems answer


class RunLock:
    """The right to train in a folder. A child that is forked does not have it; it ends with this object at the latest.

    Two locks of one process on the same folder exclude each other as those of two processes do.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / ".lock"
        self._holding: weakref.finalize[..., RunLock] | None = None

    @property
    def is_held(self) -> bool:
        """Whether this object has the lock."""
        return self._holding is not None and self._holding.alive

    def acquire(self) -> None:
        """Takes the lock; having it already is fine.

        Raises: CheckpointError where another has it, or the folder cannot be written.
        """
        if self.is_held:
            return
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)  # not inherited by programs that are started
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            self._take(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        self._holding = weakref.finalize(self, _let_go, descriptor)
        _held.add(self)

    def release(self) -> None:
        """Gives the lock back; not having it is fine."""
        if self._holding is not None:
            self._holding()
        _held.discard(self)

    def forget(self) -> None:
        """What a forked child does with the lock: it keeps no hold on it, and leaves it to the parent."""
        if self._holding is not None and (finalizer := self._holding.detach()):
            os.close(finalizer[2][0])
        _held.discard(self)

    def _take(self, descriptor: int) -> None:
        by_kernel = True
        try:
            free = _lock(descriptor)
        except OSError as error:
            if error.errno not in _WITHOUT_LOCKS:
                raise self._unwritable(error) from error
            by_kernel, free = False, self._owner_is_gone()
        if not free:
            raise self._refusal(by_kernel)
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        try:
            os.ftruncate(descriptor, 0)
            os.lseek(descriptor, 0, os.SEEK_SET)
            os.write(descriptor, json.dumps(owner).encode())
        except OSError as error:
            if not by_kernel:  # else it locks even where a full disk does not take what only the message needs
                raise self._unwritable(error) from error

    def _owner_is_gone(self) -> bool:
        """Whether whoever the file names has ended; one on another machine cannot be asked."""
        owner = self._owner()
        if not owner:
            return True
        if owner["host"] != socket.gethostname():
            return False
        if owner["pid"] == os.getpid():  # ours, or that of an earlier process of this number
            return not any(lock.path == self.path for lock in _held)
        return not _lives(owner["pid"])

    def _owner(self) -> dict[str, Any]:
        """What the file says; nothing where it is empty, or just being written."""
        try:
            owner = json.loads(self.path.read_bytes())
        except (OSError, ValueError):
            return {}
        return owner if isinstance(owner, dict) and {"pid", "host", "since"} <= owner.keys() else {}

    def _refusal(self, by_kernel: bool) -> CheckpointError:
        owner = self._owner()
        if owner and (owner["pid"], owner["host"]) == (os.getpid(), socket.gethostname()):
            return CheckpointError(f"{self.directory} is being trained in this process already; close that run first")
        who = "process {pid} on {host} since {since}".format(**owner) if owner else "another process"
        mend = "wait for it or stop it" + ("" if by_kernel else f", or remove {self.path} if it has ended")
        return CheckpointError(f"{self.directory} is being trained by {who}; {mend}")

    def _unwritable(self, error: OSError) -> CheckpointError:
        reason = (error.strerror or str(error)).lower()
        return CheckpointError(f"{self.path} could not be written ({reason}); training needs a folder that can be")


def _let_go(descriptor: int) -> None:
    try:
        with contextlib.suppress(OSError):  # no file system without locks keeps this one from being given back
            os.ftruncate(descriptor, 0)
            _unlock(descriptor)
    finally:
        os.close(descriptor)


_held: weakref.WeakSet[RunLock] = weakref.WeakSet()


def _forget_all() -> None:
    for lock in list(_held):
        lock.forget()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forget_all)
