"""Folders of many files in shards: which share a segment, what is held out, and the list of files and segments."""

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from minigpt import bounded_reading
from minigpt.data.sharded import store
from minigpt.data.sharded.mixture import Mixture
from minigpt.data.sharded.segments import Segment, cut, documents
from minigpt.data.sharded.sharded_corpus import HELD_OUT, ShardedCorpus
from minigpt.data.sharded.store import Shard, Store
from minigpt.data.sharded.tokenize import tokenize_segment
from minigpt.data.source_files import SourceFile
from minigpt.errors import DataError
from minigpt.tokenizer.tokenizer import Tokenizer

END = "<|endoftext|>"
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


def text_of(file: SourceFile) -> str:
    return file.path.read_text()


def documents_of(tokens: npt.NDArray[Any]) -> list[str]:
    return BYTES.decode(tokens.tolist()).split(END)[:-1]


def texts_of(mixture: Mixture, shard: Shard) -> list[str]:
    return documents_of(mixture.stores[0].read_tokens(shard, BYTES.vocab_size))


# Files that share a segment.


def test_small_files_that_follow_one_another_share_a_segment(tmp_path: Path) -> None:
    files = write_files(tmp_path, 100, 0, 200, 5000, 100, 1950, 40, 20)
    packed = SourceFile(tmp_path / "packed.jsonl.gz", "packed.jsonl.gz")
    packed.path.write_bytes(gzip.compress(b'{"text": "one"}\n{"text": "two"}\n'))
    found = cut([*files, packed], "text", 2000)
    length = packed.path.stat().st_size
    assert found == [
        Segment(0, "files", 0, 3, 300),
        Segment(3, "bytes", 0, 2000, 2000),
        Segment(3, "bytes", 2000, 5000, 3000),
        Segment(4, "bytes", 0, 100, 100),
        Segment(5, "files", 5, 7, 1990),
        Segment(7, "files", 7, 9, 20 + 3 * length),
    ]
    assert [number for each in found for number in each.files] == [0, 1, 2, 3, 3, 4, 5, 6, 7, 8]
    assert [text for text, _ in documents([*files, packed], found[-1], "text")] == [text_of(files[7]), "one", "two"]


def test_the_documents_of_files_that_share_a_segment_are_in_its_shards_once(tmp_path: Path) -> None:
    files = write_files(tmp_path / "articles", *[100] * 300)
    mixture = build(tmp_path / "cache", files, whole=True).mixture
    assert mixture.is_complete()
    assert 15 <= len(mixture.stores[0].segments) < 20
    found = [text for shard in mixture.stores[0].shards() if shard for text in texts_of(mixture, shard)]
    assert sorted(found) == [text_of(file) for file in files]
    again = Store.create(tmp_path / "cache", files, "text", BYTES)
    assert (again.folder.name, again.segments) == (mixture.stores[0].folder.name, mixture.stores[0].segments)


def test_much_text_in_small_compressed_files_becomes_several_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "SHARD_BYTES", 100_000)
    files = [SourceFile(tmp_path / f"{number}.txt.gz", f"{number}.txt.gz") for number in range(4)]
    for file in files:
        file.path.write_bytes(gzip.compress(b"a line of much text\n" * 60_000))
    mixture = build(tmp_path / "cache", files, whole=True).mixture
    assert [each.files for each in mixture.stores[0].segments] == [range(4)]
    shards = [shard for shard in mixture.stores[0].shards() if shard]
    assert len(shards) >= 4
    assert sum(shard.text_bytes for shard in shards) == 4 * 60_000 * 20


def test_a_file_that_changes_in_a_shared_segment_is_an_error(tmp_path: Path) -> None:
    made = Store.create(tmp_path / "cache", write_files(tmp_path, 100, 100, 100), "text", BYTES)
    os.utime(made.files[1].path, (1, 1))
    with pytest.raises(DataError, match=r"^0001\.txt changed while it was tokenized; run the command again$"):
        tokenize_segment(made, 0, BYTES, 1, lambda: True)


# What is held out.


def trained_documents(corpus: ShardedCorpus) -> set[str]:
    """The documents of the training sequences of the first epoch."""
    (text,) = corpus.order.texts
    text.refresh()
    group, _, _ = text._read_group(0, 0, 16, 0)
    return set(BYTES.decode(group.read(np.arange(group.size)).tolist()).split(END))


@pytest.mark.parametrize("options", [{}, {"deduplicate": True}, {"validation_fraction": 0.1}])
def test_a_folder_of_short_files_has_a_validation_part(tmp_path: Path, options: dict[str, Any]) -> None:
    files = write_files(tmp_path / "articles", *[100] * 400)
    corpus = build(tmp_path / "cache", files, **options)
    held_out = set(documents_of(corpus.validation))
    assert corpus.held_out == HELD_OUT
    assert corpus.validation_bytes == pytest.approx(4000, rel=0.1)
    assert held_out < set(map(text_of, files))
    assert not held_out & set(documents_of(corpus.train))
    assert not held_out & trained_documents(corpus)


def test_documents_of_several_shards_are_held_out_if_the_first_has_too_few(tmp_path: Path) -> None:
    files = write_files(tmp_path / "books", *[1500] * 60)
    corpus = build(tmp_path / "cache", files)
    held_out, train = set(documents_of(corpus.validation)), set(documents_of(corpus.train))
    assert len(corpus.mixture.stores[0].segments) == 60
    assert [len(each) for each in corpus.held_out_documents] == [4]
    assert (len(held_out), len(train)) == (4, 4)
    assert held_out | train == held_out ^ train
    assert trained_documents(corpus) == train | {""}
    assert corpus.token_counts(BYTES.vocab_size)[BYTES.end_of_text] == 4
    again = ShardedCorpus.open(corpus.path)
    assert again.held_out_documents == corpus.held_out_documents
    assert again.sources == corpus.sources


def test_documents_are_held_out_of_several_shards_since_one_may_be_of_one_kind(tmp_path: Path) -> None:
    file = write_files(tmp_path, 100)[0]
    kinds = ["a few words", "ein paar Worte"]
    file.path.write_text(END.join(f"{number} {kinds[number // 3000]}" * 8 for number in range(6000)))
    corpus = build(tmp_path / "cache", [file], validation_fraction=0.008)
    shards = [shard for shard in corpus.mixture.stores[0].shards() if shard is not None]
    assert len(shards) > 4
    assert set(corpus.held_out_documents[0]) == {shard.name for shard in shards[:8]}
    for part in (corpus.validation, corpus.train):
        documents = documents_of(part)
        assert 0.1 < sum("Worte" in document for document in documents) / len(documents) < 0.9
    assert corpus.train_bytes == pytest.approx(corpus.mixture.stores[0].shard_bytes, rel=0.3)


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
    assert sorted(number for each in made.segments for number in each.files) == list(range(1100))


def test_a_name_that_is_not_utf8_is_kept(tmp_path: Path) -> None:
    path = write_files(tmp_path, 100)[0].path.rename(tmp_path / os.fsdecode(b"caf\xe9.txt"))
    made = Store.create(tmp_path, [SourceFile(path, path.name)], "text", BYTES)
    assert made.files == (SourceFile(path, path.name),)


def test_too_many_files_are_refused_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_MOST_FILES", 1)
    with pytest.raises(DataError, match=r"^the text has 2 files, of which at most 1 can be read in shards; join them"):
        build(tmp_path / "cache", write_files(tmp_path, 100, 100))


def other_line(number: int, value: object) -> Callable[[list[str]], list[str]]:
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
        other_line(0, []),
        other_line(1, ["/0000.txt", "0000.txt", "utf-8", "strict", "0"]),
        other_line(1, ["/0000.txt", "x" * 2**16, "utf-8", "strict", 0]),
        other_line(2, [1, "bytes", 0, 100, 100]),
        other_line(2, [-1, "bytes", 0, 100, 100]),
        other_line(2, [0, "byte", 0, 100, 100]),
        other_line(2, [0, "bytes", 0, 100]),
        other_line(2, 5),
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
