"""Texts that are symbolic links, as in a Hugging Face cache, and folders that cannot be read as a whole."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from minigpt.data.find_files import find_files
from minigpt.data.source_files import UTF8, absolute_path
from minigpt.errors import DataError
from minigpt.run_options import Request
from minigpt.runs.find_run import absolute_sources, run_name

pytestmark = pytest.mark.skipif(os.name == "nt", reason="links need permission on Windows")


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """A `.jsonl` that is a link to a file whose name does not say its type."""
    blob = tmp_path / "blobs" / "5f3a"
    blob.parent.mkdir()
    blob.write_text(json.dumps({"text": "one text"}) + "\n")
    link = tmp_path / "snapshots" / "train.jsonl"
    link.parent.mkdir()
    link.symlink_to(Path("..", "blobs", "5f3a"))
    return link


def test_a_run_on_a_linked_text_has_its_name_and_can_be_resumed(linked: Path) -> None:
    request = Request(sources=(str(linked),))
    assert run_name(request) == "train"
    assert absolute_sources(request) == (str(linked),)


def test_an_absolute_path_leads_to_the_same_file(linked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "latest").symlink_to("snapshots")
    monkeypatch.chdir(linked.parent)
    for given in ("train.jsonl", "../snapshots/train.jsonl", tmp_path / "latest" / "train.jsonl"):
        assert absolute_path(given) == linked
    assert absolute_path(tmp_path / "latest" / ".." / "blobs") == tmp_path / "blobs"
    assert absolute_path(".") == linked.parent
    assert absolute_path("..") == tmp_path
    assert run_name(Request(sources=(".",))) == "snapshots"


def test_a_run_on_the_root_folder_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    assert [run_name(Request(sources=(given,))) for given in ("/", ".")] == ["run", "run"]


def test_a_folder_gives_the_files_of_linked_folders_and_a_circle_ends(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "far.txt").write_text("far")
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / "near.txt").write_text("near")
    for name, target in (("linked", "../elsewhere"), ("again", "../elsewhere"), ("circle", "."), ("itself", "itself")):
        (folder / name).symlink_to(target)
    found = find_files([folder], UTF8)
    assert [file.name for file in found.files] == [str(folder / "near.txt"), str(folder / "again" / "far.txt")]
    assert found.skipped == [str(folder / "itself")]


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "closed").mkdir()
    (tmp_path / "open.txt").write_text("open")
    scandir = os.scandir

    def refusing(path: str | Path) -> Any:
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr("os.scandir", refusing)
    assert find_files([tmp_path], UTF8).notes == [
        f"skipped a folder: {tmp_path / 'closed'} cannot be read (permission denied)"
    ]
    with pytest.raises(DataError, match=r"closed cannot be read \(permission denied\)$"):
        find_files([tmp_path / "closed"], UTF8)


def test_a_link_to_what_may_not_be_read_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "secret.txt").symlink_to("/root/secret.txt")
    stat = os.stat

    def refusing(path: Any, **options: Any) -> os.stat_result:
        if Path(path).name == "secret.txt" and options.get("follow_symlinks", True):
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, **options)

    monkeypatch.setattr("os.stat", refusing)
    for source in (tmp_path, f"{tmp_path}/*.txt"):
        assert find_files([source], UTF8).skipped == [str(tmp_path / "secret.txt")]


def test_a_file_in_a_folder_that_cannot_be_read_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "b.txt.gz").write_bytes(b"\x1f\x8b damaged")
    found = find_files([tmp_path], UTF8)
    assert [file.name for file in found.files] == [str(tmp_path / "a.txt")]
    (note,) = found.notes
    assert note.startswith(f"skipped a file: {tmp_path / 'b.txt.gz'} ")
    (tmp_path / "a.txt").unlink()
    with pytest.raises(DataError, match=r"b\.txt\.gz "):
        find_files([tmp_path], UTF8)
