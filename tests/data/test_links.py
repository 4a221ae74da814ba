"""Texts that are symbolic links, as in a Hugging Face cache, and folders that cannot be read as a whole."""

import json
import os
from pathlib import Path

import pytest

from minigpt.data.sharded.segments import documents
from minigpt.data.sharded.store import Store
from minigpt.data.source_files import UTF8, absolute_path, find_files
from minigpt.jobs.request import Request
from minigpt.tokenizer.tokenizer import Tokenizer

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


def test_a_linked_text_keeps_its_type_in_shards(linked: Path, tmp_path: Path) -> None:
    made = Store.create(tmp_path / "cache", find_files([linked], UTF8).files, "text", Tokenizer.named("bytes"))
    opened = Store(made.folder)
    assert [text for text, _ in documents(opened.files[0], opened.segments[0], "text")] == ["one text"]


def test_a_run_on_a_linked_text_has_its_name_and_can_be_resumed(linked: Path) -> None:
    request = Request(sources=(str(linked),))
    assert request.run_name == "train"
    assert request.absolute_sources == (str(linked),)


def test_an_absolute_path_leads_to_the_same_file(linked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "latest").symlink_to("snapshots")
    monkeypatch.chdir(linked.parent)
    for given in ("train.jsonl", "../snapshots/train.jsonl", tmp_path / "latest" / "train.jsonl"):
        assert absolute_path(given) == linked
    assert absolute_path(tmp_path / "latest" / ".." / "blobs") == tmp_path / "blobs"
    assert absolute_path(".") == linked.parent
    assert absolute_path("..") == tmp_path
    assert Request(sources=(".",)).run_name == "snapshots"
