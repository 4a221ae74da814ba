"""Atomic writes of files and folders, and JSON files."""

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from minigpt.errors import CheckpointError, FolderTakenError
from minigpt.storage.files import atomic_folder, atomic_write, exists, json_bytes, read_json
from minigpt.storage.folder import PROCESS, host


def everything_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


def write_folder(path: Path) -> None:
    with atomic_folder(path) as building:
        (building / "file").write_bytes(b"new")


def fail_fsync(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)


def test_a_written_file_has_the_content_and_no_temporary_file_stays(tmp_path: Path) -> None:
    atomic_write(tmp_path / "new" / "folder" / "file", b"first")
    atomic_write(tmp_path / "new" / "folder" / "file", lambda file: file.write(b"second"))
    assert (tmp_path / "new" / "folder" / "file").read_bytes() == b"second"
    assert everything_in(tmp_path) == ["file", "folder", "new"]


def test_a_written_file_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"")
    atomic_write(tmp_path / "file", b"")
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


def test_the_old_file_stays_until_the_new_one_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write(file: IO[bytes]) -> None:
        file.write(b"half of the new")
        file.flush()
        assert path.read_bytes() == b"old"

    atomic_write(path, write)
    assert path.read_bytes() == b"half of the new"


@pytest.mark.parametrize("stop", [KeyboardInterrupt, ZeroDivisionError])
def test_an_interrupted_write_changes_nothing(tmp_path: Path, stop: type[BaseException]) -> None:
    (tmp_path / "file").write_bytes(b"old")

    def write(file: IO[bytes]) -> None:
        file.write(b"half")
        raise stop

    with pytest.raises(stop):
        atomic_write(tmp_path / "file", write)
    assert (tmp_path / "file").read_bytes() == b"old"
    assert everything_in(tmp_path) == ["file"]


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.ENOSPC, "no space left on device.*free some space"),
        (errno.EROFS, "read-only file system.*can be written"),
        (errno.EACCES, "permission denied.*can be written"),
    ],
)
def test_a_write_that_the_system_refuses_is_one_sentence_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, reason: str
) -> None:
    (tmp_path / "file").write_bytes(b"old")
    fail_fsync(monkeypatch, number)
    with pytest.raises(CheckpointError, match=rf"{tmp_path}/file could not be written \({reason}") as refused:
        atomic_write(tmp_path / "file", b"new")
    assert "\n" not in str(refused.value)
    assert (tmp_path / "file").read_bytes() == b"old"
    assert everything_in(tmp_path) == ["file"]


def test_a_folder_appears_only_when_it_is_complete(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "folder") as building:
        (building / "file").write_bytes(b"")
        assert not (tmp_path / "folder").exists()
    assert everything_in(tmp_path) == ["file", "folder"]


def test_a_folder_whose_block_fails_is_removed(tmp_path: Path) -> None:
    def fill() -> None:
        with atomic_folder(tmp_path / "folder") as building:
            (building / "file").write_bytes(b"")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fill()
    assert everything_in(tmp_path) == []


@pytest.mark.parametrize("process", ["0123abcd", PROCESS], ids=["earlier", "this"])
def test_the_temporary_folder_of_a_killed_process_with_the_same_pid_is_removed(tmp_path: Path, process: str) -> None:
    left = tmp_path / f".model.{os.getpid()}.{host()}_{process}.tmp"
    left.mkdir()
    (left / "part").write_text("half")
    with atomic_folder(tmp_path / "model") as folder:
        (folder / "whole").write_text("all")
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["whole"]
    assert not left.exists()


def test_processes_of_containers_with_the_same_host_name_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    here = host.__wrapped__()
    monkeypatch.setattr(Path, "readlink", lambda _path: Path("pid:[4026539999]"))
    assert host.__wrapped__() != here


@pytest.mark.parametrize("write", [lambda path: atomic_write(path, b"new"), write_folder])
def test_what_killed_processes_left_of_the_same_output_is_removed(
    tmp_path: Path, write: Callable[[Path], object]
) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left = f".out.{dead.pid}.tmp"
    left_folders = [f".out.{dead.pid}.{host()}_0123abcd.tmp", f".out.{dead.pid}.{host()}_0123abcd.x_1.tmp"]
    kept = [f".out.{os.getppid()}.tmp", f".other.{dead.pid}.tmp", ".out.tmp", f".out.{dead.pid}.tmp.txt"]
    kept_folders = [f".out.{os.getppid()}.{host()}_0123abcd.tmp", f".out.{dead.pid}.00000000_0123abcd.tmp"]  # a host's
    for name in (left, *kept):
        (tmp_path / name).write_bytes(b"partial")
    for name in (*left_folders, *kept_folders):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_bytes(b"{}")
    links = [".out.999999999.tmp", f".out.999999999.{host()}_0123abcd.tmp"]
    for name in links:
        (tmp_path / name).symlink_to(tmp_path)
    write(tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"out", *links, *kept, *kept_folders}


def test_in_an_existing_folder_files_are_replaced_and_the_others_stay(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("replaced", "kept"):
        (tmp_path / "folder" / name).write_bytes(b"old")
    with atomic_folder(tmp_path / "folder") as building:
        for name in ("replaced", "added"):
            (building / name).write_bytes(b"new")
        assert (tmp_path / "folder" / "replaced").read_bytes() == b"old"
    assert {path.name: path.read_bytes() for path in (tmp_path / "folder").iterdir()} == {
        "replaced": b"new",
        "added": b"new",
        "kept": b"old",
    }
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_the_error_of_a_full_disk_names_the_final_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_fsync(monkeypatch, errno.ENOSPC)
    with (
        pytest.raises(CheckpointError, match=f"^{tmp_path}/folder/file could not"),
        atomic_folder(tmp_path / "folder") as building,
    ):
        atomic_write(building / "file", b"")
    assert everything_in(tmp_path) == []


def test_a_folder_that_another_process_created_in_the_meantime_is_not_replaced(tmp_path: Path) -> None:
    def fill() -> None:
        with atomic_folder(tmp_path / "folder"):
            (tmp_path / "folder").mkdir()
            (tmp_path / "folder" / "theirs").write_bytes(b"")

    with pytest.raises(FolderTakenError, match=r"folder already exists; choose another name$"):
        fill()
    assert everything_in(tmp_path) == ["folder", "theirs"]


@pytest.mark.parametrize("theirs", [[], ["theirs"]])
def test_a_new_folder_never_replaces_an_existing_one_not_even_an_empty_one(tmp_path: Path, theirs: list[str]) -> None:
    (tmp_path / "folder").mkdir()
    for name in theirs:
        (tmp_path / "folder" / name).write_bytes(b"")
    with pytest.raises(FolderTakenError), atomic_folder(tmp_path / "folder", new=True) as building:
        (building / "file").write_bytes(b"")
    assert everything_in(tmp_path) == ["folder", *theirs]


def test_json_is_read_back_equal(tmp_path: Path) -> None:
    value = {"name": "Ærø", "losses": [1.5, None], "deep": {"n": 3}}
    atomic_write(tmp_path / "file.json", json_bytes(value))
    assert read_json(tmp_path / "file.json") == value


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "is not JSON"),
        (b"", "is not JSON"),
        (b"\xff\xfe\x00", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[1]", "must hold a JSON object, not a list"),
    ],
)
def test_other_content_than_a_json_object_is_refused_with_the_path(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "file.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{tmp_path}/file.json {reason}"):
        read_json(tmp_path / "file.json")


def test_a_missing_json_file_is_refused_with_the_path(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"{tmp_path}/file.json does not exist"):
        read_json(tmp_path / "file.json")


def test_exists_raises_if_it_cannot_be_checked(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert exists(tmp_path)
    assert exists(tmp_path / "file")
    assert not exists(tmp_path / "none")
    assert not exists(tmp_path / "file" / "below")
    with pytest.raises(CheckpointError, match=r"could not be read \(file name too long\)"):
        exists(tmp_path / ("x" * 300))
