"""Folders of many files in shards, and the list of files and segments that their shards have."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minigpt import bounded_reading
from minigpt.data.sharded import store
from minigpt.data.sharded.sharded_corpus import ShardedCorpus
from minigpt.data.sharded.store import Store
from minigpt.data.source_files import SourceFile
from minigpt.errors import DataError
from minigpt.tokenizer.tokenizer import Tokenizer

BYTES = Tokenizer.named("bytes")


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "SHARD_BYTES", 2000)


def write_files(folder: Path, *sizes: int) -> list[SourceFile]:
    """Text files of these sizes; each begins with its number."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number:04d}.txt" for number in range(len(sizes))]
    for path, size in zip(paths, sizes, strict=True):
        path.write_text((path.stem + " a few words of an article" * size)[:size])
    return [SourceFile(path, path.name) for path in paths]


def build(cache: Path, files: list[SourceFile], **options: Any) -> ShardedCorpus:
    return ShardedCorpus.build_in_shards([files], [1.0], BYTES, cache=cache, **options)


# The list of files and segments.


def test_a_list_of_files_may_have_more_values_than_one_json_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_reading, "MAX_VALUES", 1000)
    files = write_files(tmp_path / "articles", *[100] * 1100)
    corpus = build(tmp_path / "cache", files)
    assert corpus.sources == tuple(file.name for file in files)
    made = corpus.mixture.stores[0]
    assert made.files == tuple(files)
    assert made.changed_at == tuple(file.stat().st_mtime_ns for file in files)
    assert sorted(each.file for each in made.segments) == list(range(1100))


def test_a_name_that_is_not_utf8_is_kept(tmp_path: Path) -> None:
    path = write_files(tmp_path, 100)[0].path.rename(tmp_path / os.fsdecode(b"caf\xe9.txt"))
    made = Store.create(tmp_path, [SourceFile(path, path.name)], "text", BYTES)
    assert made.files == (SourceFile(path, path.name),)


def test_too_many_files_are_refused_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_MOST_FILES", 1)
    with pytest.raises(DataError, match=r"^the text has 2 files, of which at most 1 can be read in shards; join them"):
        build(tmp_path / "cache", write_files(tmp_path, 100, 100))


def line(number: int, value: object) -> Callable[[list[str]], list[str]]:
    """A damage: another value in a line."""
    return lambda lines: [*lines[:number], json.dumps(value), *lines[number + 1 :]]


def header(name: str, value: int) -> Callable[[list[str]], list[str]]:
    """A damage: another value in the first line."""
    return lambda lines: [json.dumps(json.loads(lines[0]) | {name: value}), *lines[1:]]


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: [],
        lambda lines: lines[:-1],
        lambda lines: [*lines, lines[-1]],
        lambda lines: [*lines[:2], "[" * 100],
        header("files", 10**9),
        header("files", -1),
        header("files", 2),
        header("format", 2),
        line(0, []),
        line(1, ["/0000.txt", "0000.txt", "utf-8", "strict", "0"]),
        line(1, ["/0000.txt", "x" * 2**16, "utf-8", "strict", 0]),
        line(2, [1, "bytes", 0, 100, 100]),
        line(2, [-1, "bytes", 0, 100, 100]),
        line(2, [0, "byte", 0, 100, 100]),
        line(2, [0, "bytes", 0, 100]),
        line(2, 5),
    ],
)
def test_a_damaged_list_is_refused(tmp_path: Path, damage: Callable[[list[str]], list[str]]) -> None:
    folder = Store.create(tmp_path, write_files(tmp_path, 100), "text", BYTES).folder
    lines = (folder / "store.jsonl").read_text().splitlines()
    assert len(lines) == 3
    (folder / "store.jsonl").write_text("".join(f"{each}\n" for each in damage(lines)))
    with pytest.raises(DataError, match=r"is not a complete list of shards; build the corpus again from its text$"):
        Store(folder)
    (folder / "store.jsonl").write_text("".join(f"{each}\n" for each in lines))
    assert Store(folder).files[0].name == "0000.txt"
