"""Texts in shards: cut anywhere, tokenized in any order and interrupted at any point, they give the same sequences."""

import errno
import gzip
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.data.open_corpus import open_corpus
from minigpt.data.sharded import order, segments, store
from minigpt.data.sharded.first_shards import hold_out
from minigpt.data.sharded.mixture import Mixture
from minigpt.data.sharded.order import BLOCK, MixtureOrder, shares
from minigpt.data.sharded.segments import cut, documents
from minigpt.data.sharded.sharded_corpus import ShardedCorpus
from minigpt.data.sharded.store import Store
from minigpt.data.sharded.workers import FIRST, Workers, tokenize
from minigpt.data.source_files import SourceFile
from minigpt.data.transcript import CHAT_TEMPLATE
from minigpt.errors import ConfigError, DataError
from minigpt.tokenizer.tokenizer import Tokenizer

END = "<|endoftext|>"
BYTES = Tokenizer.named("bytes")
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "SHARD_BYTES", 2000)


def write_text(path: Path, count: int = 300, seed: int = 0) -> Path:
    """A `.jsonl` of numbered documents of about 100 bytes."""
    numbers = random.Random(seed)
    rows = ({"text": f"{path.stem} {i} " + " ".join(numbers.choices(WORDS, k=15))} for i in range(count))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def texts_of(path: Path) -> list[str]:
    return [json.loads(line)["text"] for line in path.read_text().splitlines()]


def mixture_of(folder: Path, *paths: Path, weights: tuple[float, ...] = (), deduplicate: bool = False) -> Mixture:
    stores = [Store.create(folder, [SourceFile(path, path.name)], "text", BYTES) for path in paths]
    mixture = Mixture.create(
        folder / "corpora" / "one", stores, weights or (1.0,) * len(paths), deduplicate=deduplicate
    )
    BYTES.save(mixture.folder)
    return mixture


def order_of(mixture: Mixture) -> MixtureOrder:
    nothing: list[dict[str, list[int]]] = [{} for _ in mixture.stores]
    return MixtureOrder(mixture, BYTES.end_of_text, BYTES.vocab_size, nothing)


def known_bytes(mixture: Mixture) -> int:
    """The bytes of the shards from which documents of the first text may be held out."""
    return sum(shard.text_bytes for shard in islice(mixture.stores[0].shards(), FIRST) if shard)


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock" and path.name != "alive")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


# Segments.

PIECES = st.lists(st.sampled_from([END, "a", "é", "中", "😀", " ", "\n", "\r\n", "one two"]), max_size=60)


@given(PIECES, st.integers(1, 40))
@settings(max_examples=150, deadline=None)
def test_the_segments_of_a_text_have_all_of_it_and_no_character_is_cut(pieces: list[str], size: int) -> None:
    text = "".join(pieces)
    path = Path("/dev/shm" if os.path.isdir("/dev/shm") else "/tmp", f"minigpt-test-{os.getpid()}.txt")  # noqa: PTH112
    path.write_bytes(text.encode())
    try:
        file = SourceFile(path, path.name)
        found = [text for each in cut([file], "text", size) for text, _ in documents([file], each, "text")]
    finally:
        path.unlink()
    assert "".join("".join(found).split()) == "".join(text.replace(END, "").split())
    assert all(each.strip() and END not in each for each in found)


@pytest.mark.parametrize("size", [1, 7, 50, 1000, 10**6])
def test_the_segments_of_a_jsonl_have_each_line_once(tmp_path: Path, size: int) -> None:
    path = write_text(tmp_path / "web.jsonl", 40)
    file = SourceFile(path, path.name)
    found = [text for each in cut([file], "text", size) for text, _ in documents([file], each, "text")]
    assert found == texts_of(path)


def test_a_long_document_becomes_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "LONGEST_DOCUMENT", 100)
    path = tmp_path / "book.txt"
    path.write_text(" ".join(WORDS * 50))
    file = SourceFile(path, path.name)
    parts = [text for each in cut([file], "text", 10**6) for text, _ in documents([file], each, "text")]
    assert "".join(parts) == path.read_text()
    assert 20 < len(parts) < 60
    assert all(part.startswith(" ") for part in parts[1:])


def test_an_error_in_a_segment_names_where_it_begins(tmp_path: Path) -> None:
    path = write_text(tmp_path / "web.jsonl")
    with path.open("a") as file:
        file.write("{no json\n")
    with pytest.raises(DataError, match=r"web\.jsonl \(from byte \d\d,\d{3}\), line \d+ is not JSON"):
        tokenize(mixture_of(tmp_path, path), BYTES)


# Tokens.


def test_each_document_is_in_the_shards_once(tmp_path: Path) -> None:
    paths = write_text(tmp_path / "web.jsonl"), write_text(tmp_path / "books.jsonl", 100)
    mixture = mixture_of(tmp_path, *paths)
    tokenize(mixture, BYTES)
    assert mixture.is_complete()
    for files, path in zip(mixture.stores, paths, strict=True):
        found = Counter()  # type: ignore[var-annotated]
        for shard in files.shards():
            assert shard is not None
            text = BYTES.decode(files.read_tokens(shard, BYTES.vocab_size).tolist())
            found.update(text.split(END)[:-1])
        assert found == Counter(texts_of(path))
    done, total = mixture.done_bytes()
    assert done == total == sum(len(text) for path in paths for text in texts_of(path))


def test_a_file_that_cannot_be_read_from_the_middle_gives_the_same_documents(tmp_path: Path) -> None:
    path = write_text(tmp_path / "web.jsonl")
    packed = tmp_path / "web.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    mixture = mixture_of(tmp_path / "cache", packed)
    tokenize(mixture, BYTES)
    shards = [shard for shard in mixture.stores[0].shards() if shard]
    assert len(shards) == 1 + max(shard.number for shard in shards)  # several of one segment; a batch has a megabyte
    assert sum(shard.documents for shard in shards) == 300


def test_what_is_there_is_not_tokenized_again_and_what_is_missing_is(tmp_path: Path) -> None:
    mixture = mixture_of(tmp_path / "cache", write_text(tmp_path / "web.jsonl"))
    tokenize(mixture, BYTES)
    whole = contents(tmp_path / "cache")
    for index, path in enumerate(sorted(mixture.stores[0].folder.glob("*.json"))):
        if index % 3 == 0:
            path.unlink()
    again = Mixture.load(mixture.folder)
    kept = {path: path.stat().st_mtime_ns for path in again.stores[0].folder.glob("*.json")}
    tokenize(again, BYTES)
    assert contents(tmp_path / "cache") == whole
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


@pytest.mark.skipif(sys.platform != "linux", reason="SIGKILL and /proc")
def test_killed_at_any_point_it_continues_to_the_same_tokens(tmp_path: Path) -> None:
    texts = write_text(tmp_path / "web.jsonl", 1500), write_text(tmp_path / "books.jsonl", 500)
    mixture = mixture_of(tmp_path / "whole", *texts, deduplicate=True)
    tokenize(mixture, BYTES)
    killed = mixture_of(tmp_path / "killed", *texts, deduplicate=True)
    command = [sys.executable, "-m", "minigpt.data.sharded.workers", str(killed.folder), "0", "1", "0", "0"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    n_kills = 0
    while not Mixture.load(killed.folder).is_complete():  # killed in ever other places
        process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)
        before = sum(1 for _ in killed.stores[0].folder.iterdir())
        enough = before + 60 + 7 * n_kills
        while process.poll() is None and sum(1 for _ in killed.stores[0].folder.iterdir()) < enough:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        n_kills += 1
    assert n_kills > 2
    partial = {name for name in contents(tmp_path / "killed") if "/." in name}
    found = {name: content for name, content in contents(tmp_path / "killed").items() if name not in partial}
    assert found == contents(tmp_path / "whole")


def test_a_full_disk_is_one_line_and_nothing_half_written_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixture = mixture_of(tmp_path, write_text(tmp_path / "web.jsonl"))
    record, left = Store.record, [5]

    def full(self: Store, shard: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        record(self, shard)

    monkeypatch.setattr(Store, "record", full)
    with pytest.raises(DataError, match=r"^the tokens cannot be written to .* \(no space left on device\); free some"):
        tokenize(mixture, BYTES)
    monkeypatch.undo()
    monkeypatch.setattr(store, "SHARD_BYTES", 2000)
    assert len(list(Mixture.load(mixture.folder).stores[0].folder.glob("*-*.json"))) == 5
    tokenize(Mixture.load(mixture.folder), BYTES)
    assert Mixture.load(mixture.folder).is_complete()


def test_damaged_tokens_are_an_error_when_they_are_read(tmp_path: Path) -> None:
    mixture = mixture_of(tmp_path, write_text(tmp_path / "web.jsonl"))
    tokenize(mixture, BYTES)
    path = next(mixture.stores[0].folder.glob("*.bin"))
    content = bytearray(path.read_bytes())
    content[10] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"\.bin are damaged; delete \S+\.json beside it and run the command again$"):
        order_of(mixture).windows(range(200), 16, 1, 0)


def test_tokens_that_the_system_does_not_open_are_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixture = mixture_of(tmp_path, write_text(tmp_path / "web.jsonl"))
    tokenize(mixture, BYTES)
    files = mixture.stores[0]
    shard = next(files.shards())
    assert shard is not None

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(store.np, "memmap", refuse)
    with pytest.raises(DataError, match=r"\.bin cannot be read \(too many open files\)$"):
        files.read_tokens(shard, BYTES.vocab_size)
    files.tokens_path(shard.name).unlink()
    with pytest.raises(DataError, match=r"\.bin, the tokens of a part of the text, is missing; run the command again$"):
        files.read_tokens(shard, BYTES.vocab_size)


# Duplicates.


def test_equal_documents_are_kept_once_wherever_they_are(tmp_path: Path) -> None:
    web, books = write_text(tmp_path / "web.jsonl"), write_text(tmp_path / "books.jsonl", 100)
    copies = "".join(json.dumps({"text": text}) + "\n" for text in texts_of(web)[::3])
    books.write_text(books.read_text() + copies)
    web.write_text(web.read_text() + copies)
    mixture = mixture_of(tmp_path, web, books, deduplicate=True)
    tokenize(mixture, BYTES)
    kept = [mask.sum() for number in range(2) for found in mixture.shards(number) if found for mask in [found[1]]]
    assert sum(kept) == 300 + 100
    sequences = order_of(mixture).windows(range(2000), 64, 0, 0)
    assert sequences.shape == (2000, 64)


def test_which_copy_is_kept_does_not_depend_on_which_shard_is_there_first(tmp_path: Path) -> None:
    web = write_text(tmp_path / "web.jsonl")
    web.write_text(web.read_text() * 3)
    one = mixture_of(tmp_path / "one", web, deduplicate=True)
    tokenize(one, BYTES)
    other = mixture_of(tmp_path / "other", web, deduplicate=True)
    tokenize(other, BYTES, number=1)  # which does not mark the duplicates
    for path in sorted(other.stores[0].folder.glob("*.done"))[::2]:
        path.unlink()
    tokenize(Mixture.load(other.folder), BYTES)
    assert contents(one.folder) == contents(other.folder)


# The order.


def test_an_epoch_has_each_token_once_and_the_next_in_another_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "SHARD_BYTES", 500)
    path = write_text(tmp_path / "web.jsonl", 225)
    mixture = mixture_of(tmp_path, path)
    tokenize(mixture, BYTES)
    found = order_of(mixture)
    text, length = found.texts[0], 1
    text.refresh()
    counts, _ = text._counts(0, length, 3, len(text._known), True)
    epoch = int(counts.sum())
    assert len(counts) > 3
    tokens = found.windows(range(2 * epoch), length, 0, 3)[:, 0]
    expected = Counter(BYTES.encode("".join(texts_of(path)))) + Counter({BYTES.end_of_text: 225})
    assert Counter(tokens[:epoch].tolist()) == Counter(tokens[epoch:].tolist()) == expected
    assert tokens[:epoch].tolist() != tokens[epoch:].tolist()


def test_documents_are_whole_in_the_shuffled_stream(tmp_path: Path) -> None:
    path = write_text(tmp_path / "web.jsonl")
    mixture = mixture_of(tmp_path, path)
    tokenize(mixture, BYTES)
    text = order_of(mixture).texts[0]
    text.refresh()
    group, _, _ = text._read_group(0, 0, 16, 5)
    stream = BYTES.decode(group.read(np.arange(group.size)).tolist()).split(END)
    originals = texts_of(path)
    assert stream[-1] == ""
    assert set(stream[:-1]) < set(originals)
    places = [originals.index(document) for document in stream[:-1]]
    assert places != sorted(places)
    assert abs(np.corrcoef(places, range(len(places)))[0, 1]) < 0.3


def test_the_sequences_do_not_depend_on_how_far_the_text_is_tokenized(tmp_path: Path) -> None:
    paths = write_text(tmp_path / "web.jsonl", 900), write_text(tmp_path / "books.jsonl", 400)
    whole = mixture_of(tmp_path / "whole", *paths, weights=(3, 1))
    tokenize(whole, BYTES)
    expected = order_of(whole).windows(range(1500), 32, 4, 7)

    growing = mixture_of(tmp_path / "growing", *paths, weights=(3, 1))
    tokenize(growing, BYTES, first=True)
    assert not Mixture.load(growing.folder).is_complete()
    found = order_of(growing)
    assert found.is_ready(range(100), 32, 7)
    first = found.windows(range(100), 32, 4, 7)
    assert not found.is_ready(range(1500), 32, 7)
    tokenize(Mixture.load(growing.folder), BYTES)
    rest = found.windows(range(100, 1500), 32, 4, 7)
    assert np.array_equal(np.concatenate([first, rest]), expected)
    assert np.array_equal(order_of(growing).windows(range(1200, 1500), 32, 4, 7), expected[1200:])


def never() -> None:
    raise AssertionError("waited")


def test_a_frozen_order_repeats_the_shards_that_are_there_and_never_waits(tmp_path: Path) -> None:
    mixture = mixture_of(tmp_path, write_text(tmp_path / "web.jsonl", 900))
    tokenize(mixture, BYTES, first=True)
    growing = order_of(mixture)
    frozen = growing.frozen()
    frozen.check = never
    (text,) = frozen.texts
    epoch = text.n_tokens // 32
    assert growing.is_ready(range(epoch), 32, 7)
    assert not growing.is_ready([epoch], 32, 7)
    expected = growing.windows(range(epoch), 32, 4, 7)
    assert np.array_equal(frozen.windows(range(3 * epoch), 32, 4, 7), np.concatenate(3 * [expected]))
    tokenize(Mixture.load(mixture.folder), BYTES)
    assert np.array_equal(frozen.windows(range(epoch, 2 * epoch), 32, 4, 7), expected)


def test_each_text_has_its_share_whatever_its_size(tmp_path: Path) -> None:
    paths = write_text(tmp_path / "web.jsonl", 30), write_text(tmp_path / "books.jsonl", 300)
    mixture = mixture_of(tmp_path, *paths, weights=(3, 1))
    tokenize(mixture, BYTES)
    found = order_of(mixture)
    texts = [found._text_of(sequence, 1)[0] for sequence in range(2 * BLOCK)]
    assert Counter(texts[:BLOCK]) == Counter(texts[BLOCK:]) == {0: 7500, 1: 2500}
    assert 0.6 < np.mean(np.array(texts[:200]) == 0) < 0.9
    ranks = [found._text_of(sequence, 1)[1] for sequence in range(2 * BLOCK)]
    assert sorted(rank for text, rank in zip(texts, ranks, strict=True) if text == 1) == list(range(5000))


@given(st.lists(st.floats(1, 100), min_size=1, max_size=20))
def test_the_shares_are_those_of_the_weights(weights: list[float]) -> None:
    counts = shares(weights)
    assert sum(counts) == BLOCK
    assert all(abs(count - BLOCK * weight / sum(weights)) <= 1 for count, weight in zip(counts, weights, strict=True))


def test_a_weight_too_small_for_any_sequence_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"^mix \(1e-05\) is too small a weight: it must be at least 1/10,000 of"):
        shares([1, 0.00001])


# Corpora.


def build(cache: Path, *paths: Path, tokenizer: Tokenizer | str = "bytes", **options: Any) -> ShardedCorpus:
    files = [[SourceFile(path, path.name)] for path in paths]
    return ShardedCorpus.build_in_shards(files, [1.0] * len(paths), tokenizer, cache=cache, **options)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, ShardedCorpus]]:
    folder = tmp_path_factory.mktemp("built")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "SHARD_BYTES", 2000)
        yield folder, build(folder / "cache", write_text(folder / "web.jsonl", 1000))


def test_a_corpus_has_the_tokenizer_that_was_given(tmp_path: Path) -> None:
    path = write_text(tmp_path / "web.jsonl", 40)
    for end_ids in ((256,), (256, 9)):
        corpus = build(tmp_path / "cache", path, tokenizer=BYTES.with_end_ids(end_ids))
        assert corpus.tokenizer.end_ids == end_ids


def test_a_tokenizer_is_trained_again_if_the_type_of_the_file_changes(tmp_path: Path) -> None:
    path = write_text(tmp_path / "dump.txt", 40)
    as_text = build(tmp_path / "cache", path, tokenizer="bpe:400").tokenizer
    as_json = build(tmp_path / "cache", path.rename(tmp_path / "dump.jsonl"), tokenizer="bpe:400").tokenizer
    assert b"text" in {left + right for left, right in as_text.merges}
    assert b"text" not in {left + right for left, right in as_json.merges}


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_tokenizer_has_the_chat_template_if_a_file_is_a_chat_log(tmp_path: Path, kind: str) -> None:
    answer = {"role": "assistant", "content": "yes"}
    rows = [[{"role": "user", "content": f"Is it {number}?"}, answer] for number in range(40)]
    chat = tmp_path / f"chat.{kind}"
    if kind == "jsonl":
        chat.write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))
    else:
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.table({"messages": rows}), chat)
    plain = write_text(tmp_path / "web.jsonl", 40)
    corpus = build(tmp_path / "cache", plain, chat)
    assert corpus.tokenizer.chat_template == open_corpus(corpus.path).tokenizer.chat_template == CHAT_TEMPLATE
    BYTES.save(corpus.path)  # as an earlier version did
    again = build(tmp_path / "cache", plain, chat)
    assert open_corpus(again.path).tokenizer.chat_template == CHAT_TEMPLATE
    assert (again.path, again.fingerprint) == (corpus.path, corpus.fingerprint)
    assert build(tmp_path / "cache", plain).tokenizer.chat_template is None


def test_a_corpus_is_there_when_its_first_shards_are(built: tuple[Path, ShardedCorpus]) -> None:
    folder, corpus = built
    assert not corpus.mixture.is_complete()
    text = sum(len(each) for each in texts_of(folder / "web.jsonl"))
    assert corpus.n_train_bytes + corpus.validation_bytes == pytest.approx(text, rel=0.1)
    assert corpus.n_train_tokens + len(corpus.validation) == pytest.approx(text + 1000, rel=0.1)
    assert 0 < len(corpus.validation) < 0.55 * known_bytes(corpus.mixture)
    again = open_corpus(corpus.path)
    assert isinstance(again, ShardedCorpus)
    assert again.fingerprint == corpus.fingerprint
    assert np.array_equal(again.validation, corpus.validation)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("corpus.json", "[]", r"cache/corpora/\w+ is not a complete corpus; build it again from its text$"),
        ("train.bin", "", r"cache/corpora/\w+ is not a complete corpus; build it again from its text$"),
        (
            "../../shards/*/store.jsonl",
            "{}",
            r"is not a complete list of shards; build the corpus again from its text$",
        ),
    ],
)
def test_a_damaged_corpus_says_what_is_damaged(
    built: tuple[Path, ShardedCorpus], name: str, content: str, message: str, tmp_path: Path
) -> None:
    shutil.copytree(built[0] / "cache", tmp_path / "cache")
    folder = tmp_path / "cache" / "corpora" / built[1].path.name
    for path in folder.glob(name):
        path.write_text(content)
    with pytest.raises(DataError, match=message):
        open_corpus(folder)


def test_held_out_documents_are_not_trained_on(built: tuple[Path, ShardedCorpus]) -> None:
    _, corpus = built
    held_out = BYTES.decode(corpus.validation.tolist()).split(END)[:-1]
    assert held_out
    assert not set(held_out) & set(BYTES.decode(corpus.train.tolist()).split(END))
    sequences = corpus.order.texts[0]
    sequences.refresh()
    group, _, _ = sequences._read_group(0, 0, 16, 0)
    stream = BYTES.decode(group.read(np.arange(group.size)).tolist()).split(END)
    assert not set(held_out) & set(stream)


class FailingProcess:
    """A process that still runs when it is asked first, and has failed when it is asked again."""

    def __init__(self, *_: object, **__: object) -> None:
        self.stdout, self.returncode, self.n_polls = io.StringIO(""), 9, 0

    def poll(self) -> int | None:
        self.n_polls += 1
        return None if self.n_polls == 1 else self.returncode


def test_a_process_that_fails_between_two_checks_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mixture = mixture_of(tmp_path, write_text(tmp_path / "web.jsonl"))
    monkeypatch.setattr(subprocess, "Popen", FailingProcess)
    with pytest.raises(DataError, match=r"^a process that tokenizes the text ended unexpectedly \(exit code 9\)"):
        Workers(mixture, 1).wait()


def test_on_windows_too_ctrl_c_is_only_for_the_process_that_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[dict[str, Any]] = []
    monkeypatch.setattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0x200, raising=False)
    monkeypatch.setattr(subprocess, "Popen", lambda _, **options: started.append(options))
    Workers(mixture_of(tmp_path, write_text(tmp_path / "web.jsonl")), 1)
    assert [options["creationflags"] for options in started] == [0x200]


def test_the_processes_end_when_the_one_that_started_them_is_killed(tmp_path: Path) -> None:
    mixture = mixture_of(tmp_path, write_text(tmp_path / "web.jsonl", 20_000))
    program = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from minigpt.data.sharded.mixture import Mixture\n"
        "from minigpt.data.sharded.workers import Workers\n"
        "workers = Workers(Mixture.load(Path(sys.argv[1])), 1)\n"
        "print(workers._processes[0].pid, flush=True)\n"
        "time.sleep(100)\n"
    )
    command = [sys.executable, "-c", program, str(mixture.folder)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    parent.kill()
    parent.communicate()
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            os.kill(worker, 0)
        except ProcessLookupError:
            return
        if Path(f"/proc/{worker}/stat").exists() and " Z " in Path(f"/proc/{worker}/stat").read_text():
            return
        time.sleep(0.05)
    pytest.fail("the worker still runs")


def test_waiting_without_anybody_who_tokenizes_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "_SILENCE", 0.3)
    mixture = mixture_of(tmp_path, write_text(tmp_path / "web.jsonl"))
    with pytest.raises(DataError, match=r"^no process tokenizes the text in \S+, which training waits for; .*MINIGPT_"):
        order_of(mixture).windows(range(10), 16, 1, 0)


def test_a_text_without_words_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "web.txt"
    path.write_text(" \n " * 10)
    with pytest.raises(DataError, match=r"^web\.txt contains no text; give a file with text$"):
        build(tmp_path / "cache", path)


def test_more_held_out_than_half_of_the_first_shards_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"^validation_fraction \(0\.4\) is more than half of the first shards of the"
    ):
        build(tmp_path / "cache", write_text(tmp_path / "web.jsonl"), validation_fraction=0.4)


@pytest.mark.parametrize("limit", [0.2463, 0.0998, 0.00012999])
def test_the_fraction_that_a_refusal_suggests_is_accepted(tmp_path: Path, limit: float) -> None:
    mixture = mixture_of(tmp_path, write_text(tmp_path / "web.jsonl"))
    tokenize(mixture, BYTES, first=True)
    text_bytes = round(known_bytes(mixture) / 2 / limit)
    with pytest.raises(ConfigError, match=r"^validation_fraction \(0\.9\) is more than .*; give at most") as refusal:
        hold_out(mixture, BYTES, text_bytes, 0.9)
    suggested = float(str(refusal.value).partition("give at most ")[2].partition(",")[0])
    assert 0.9 * limit < suggested <= limit
    assert len(hold_out(mixture, BYTES, text_bytes, suggested).validation)


def test_a_text_that_cannot_be_read_is_not_called_a_full_disk(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^lost\.txt cannot be read \(no such file or directory\)$"):
        build(tmp_path / "cache", tmp_path / "lost.txt")
