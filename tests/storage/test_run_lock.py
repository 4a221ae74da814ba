"""The lock on a run's folder, with real processes, and on file systems without locks."""

import errno
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from minigpt.errors import CheckpointError
from minigpt.storage.run_lock import RunLock

posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows has neither fork nor flock")

PROGRAM = """
import sys, time
from pathlib import Path
from minigpt.storage.run_lock import RunLock
lock = RunLock(Path(sys.argv[1]))
lock.acquire()
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def owner(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process that holds the lock on tmp_path."""
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


def without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates a file system without locks, such as some network file systems."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", refuse)


def name_owner(folder: Path, pid: int, host: str) -> None:
    (folder / ".lock.json").write_text(json.dumps({"pid": pid, "host": host, "since": "yesterday"}))


def ended_pid() -> int:
    """The pid of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_the_error_for_a_second_process_names_the_owner(tmp_path: Path, owner: "subprocess.Popen[str]") -> None:
    who = rf"process {owner.pid} on {re.escape(socket.gethostname())} since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d"
    with pytest.raises(CheckpointError, match=rf"{tmp_path} is being trained by {who}; wait for it or stop it$"):
        RunLock(tmp_path).acquire()


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path: Path, owner: "subprocess.Popen[str]") -> None:
    owner.kill()
    owner.wait()
    assert json.loads((tmp_path / ".lock.json").read_text())["pid"] == owner.pid
    lock = RunLock(tmp_path)
    lock.acquire()
    assert json.loads((tmp_path / ".lock.json").read_text())["pid"] == os.getpid()


@posix
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_neither_holds_the_lock_nor_releases_its_parents(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    lock.acquire()
    child = os.fork()
    if child == 0:
        had = lock.is_held
        lock.release()
        try:
            lock.acquire()
        except CheckpointError:
            os._exit(2 if had else 0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with pytest.raises(CheckpointError):
        RunLock(tmp_path).acquire()


def test_a_second_lock_in_one_process_is_refused_until_the_first_is_released(tmp_path: Path) -> None:
    first, second = RunLock(tmp_path), RunLock(tmp_path)
    first.acquire()
    first.acquire()  # does nothing
    with pytest.raises(CheckpointError, match="is being trained by this process already; close that run first"):
        second.acquire()
    first.release()
    assert not first.is_held
    second.acquire()
    first.release()  # does nothing
    assert second.is_held
    assert json.loads((tmp_path / ".lock.json").read_text())["pid"] == os.getpid()


def test_a_lock_is_released_when_its_object_is_garbage_collected(tmp_path: Path) -> None:
    first = RunLock(tmp_path)
    first.acquire()
    del first
    RunLock(tmp_path).acquire()


def test_a_full_disk_does_not_prevent_locking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    lock = RunLock(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        lock.acquire()
    with pytest.raises(CheckpointError, match=r"is being trained by another process; wait for it or stop it$"):
        RunLock(tmp_path).acquire()


def test_a_read_only_folder_gives_a_one_sentence_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(CheckpointError, match=r"\.lock could not be written \(permission denied\); training needs"):
        RunLock(tmp_path).acquire()


@posix
@pytest.mark.parametrize("host", [socket.gethostname(), "elsewhere"])
def test_without_file_locks_an_owner_that_runs_or_is_elsewhere_keeps_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    without_locks(monkeypatch)
    pid = os.getppid() if host != "elsewhere" else ended_pid()
    name_owner(tmp_path, pid, host)
    (tmp_path / ".lock.owner").write_text(f"{pid}\n{host}\n")
    message = rf"by process {pid} on {host} since yesterday; .* or remove .*\.lock\.owner if it has ended$"
    with pytest.raises(CheckpointError, match=message):
        RunLock(tmp_path).acquire()


@posix
def test_without_file_locks_the_file_of_an_ended_process_is_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_locks(monkeypatch)
    (tmp_path / ".lock.owner").write_text(f"{ended_pid()}\n{socket.gethostname()}\n")
    lock = RunLock(tmp_path)
    lock.acquire()
    assert lock.is_held


@posix
def test_without_file_locks_two_objects_of_one_process_exclude_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_locks(monkeypatch)
    first, second = RunLock(tmp_path), RunLock(tmp_path)
    first.acquire()
    with pytest.raises(CheckpointError, match="by this process already"):
        second.acquire()
    first.release()
    assert not (tmp_path / ".lock.owner").exists()  # another machine could not check whether this process exists
    second.acquire()
    assert second.is_held
