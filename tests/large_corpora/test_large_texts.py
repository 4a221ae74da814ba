"""Large texts: interrupted preparation continues, equal documents are dropped, mixtures have their shares."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minigpt.config import ReadingConfig
from minigpt.data import sources, token_writer
from minigpt.data.corpus import Corpus
from minigpt.data.sources import measure_text, scan
from minigpt.data.texts import find_texts
from minigpt.errors import ConfigError, DataError
from minigpt.large_corpora import mixture, scans
from minigpt.large_corpora.joined import JoinedArrays
from minigpt.large_corpora.mixture import BLOCK, shares, weighted
from minigpt.tokenizer.tokenizer import Tokenizer

WORDS = ["one", "two", "three", "four", "five", "six", "seven"]
BYTES = Tokenizer.named("bytes")


def write_rows(path: Path, count: int, words: int = 15, start: int = 0) -> Path:
    numbers = random.Random(0)
    rows = ({"text": f"{number + start} " + " ".join(numbers.choices(WORDS, k=words))} for number in range(count))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def files_of(folder: Path) -> dict[str, bytes]:
    """The files of the only corpus in a cache."""
    (corpus,) = (each for each in (folder / "corpora").iterdir() if not each.name.startswith("."))
    return {path.name: path.read_bytes() for path in corpus.iterdir()}


@pytest.mark.parametrize("kind", ["text", "chat"])
def test_an_interrupted_preparation_continues_to_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(token_writer, "CHUNK_SIZE", 200)
    monkeypatch.setattr(token_writer, "_RECORDED", 5)
    text = write_rows(tmp_path / "web.jsonl", 400)
    if kind == "chat":
        messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello there"}]
        text.write_text((json.dumps({"messages": messages}) + "\n") * 400)
    Corpus.build(text, BYTES, cache=tmp_path / "whole")
    for stop in (5000, 5100, 9000, 11_000):

        def interrupt(done: int, _: int, stop: int = stop) -> None:
            if done > stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            Corpus.build(text, BYTES, cache=tmp_path / "stopped", progress=interrupt)
        (partial,) = (tmp_path / "stopped" / "corpora").iterdir()
        record = json.loads((partial / token_writer.WRITTEN).read_text())
        assert record["chunks"] % 5 == 0
        with (partial / "train.bin").open("ab") as file:  # what a kill leaves after the last record
            file.write(b"xyz")
    begun = []
    Corpus.build(text, BYTES, cache=tmp_path / "stopped", progress=lambda done, _: begun.append(done))
    assert begun[1] > 5000  # not from the start
    assert files_of(tmp_path / "stopped") == files_of(tmp_path / "whole")


@pytest.mark.parametrize("lost", ["train.bin", "validation.bin", "train.speakers.bin"])
def test_a_preparation_whose_files_were_lost_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    monkeypatch.setattr(token_writer, "CHUNK_SIZE", 200)
    monkeypatch.setattr(token_writer, "_RECORDED", 5)
    text = tmp_path / "log.jsonl"
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello there"}]
    text.write_text((json.dumps({"messages": messages}) + "\n") * 400)
    Corpus.build(text, BYTES, cache=tmp_path / "whole")

    def interrupt(done: int, _: int) -> None:
        if done > 9000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Corpus.build(text, BYTES, cache=tmp_path / "stopped", progress=interrupt)
    (partial,) = (tmp_path / "stopped" / "corpora").iterdir()
    (partial / lost).write_bytes(b"")
    Corpus.build(text, BYTES, cache=tmp_path / "stopped")
    assert files_of(tmp_path / "stopped") == files_of(tmp_path / "whole")


def test_a_killed_preparation_continues_to_the_same_files(tmp_path: Path) -> None:
    text = write_rows(tmp_path / "web.jsonl", 20_000, 40)
    program = (
        "import sys; from minigpt.data import token_writer; token_writer.CHUNK_SIZE = 2**12\n"
        "from minigpt.data.corpus import Corpus; Corpus.build(sys.argv[1], 'bytes', cache=sys.argv[2])"
    )

    def start(cache: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen([sys.executable, "-c", program, str(text), str(tmp_path / cache)])

    assert start("whole").wait() == 0
    for _ in range(2):
        process = start("killed")
        deadline = time.monotonic() + 60
        while not list((tmp_path / "killed").glob("corpora/*/written.json")) and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL if os.name != "nt" else signal.SIGTERM)
        process.wait()
    both = start("killed"), start("killed")  # the second waits for the first
    assert [each.wait() for each in both] == [0, 0]
    assert files_of(tmp_path / "killed") == files_of(tmp_path / "whole")


def test_a_text_that_changes_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scans, "_REMEMBERED", 0)
    text = write_rows(tmp_path / "web.jsonl", 40)
    cache = tmp_path / "cache"

    def build() -> Corpus:
        return Corpus.build(scan(text, measure=partial(scans.measure, cache, None)), BYTES, cache=cache)

    first = build()
    before = text.stat()
    write_rows(text, 41)
    assert build().fingerprint != first.fingerprint
    write_rows(text, 40)
    os.utime(text, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert build().fingerprint == first.fingerprint


def test_a_large_text_is_read_once_to_recognize_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scans, "_REMEMBERED", 1000)
    text = write_rows(tmp_path / "web.jsonl", 40)
    remembering = partial(scans.measure, tmp_path, None)
    first = scan(text, measure=remembering)
    with monkeypatch.context() as patch:
        patch.setattr(sources, "measure_text", None)
        patch.setattr(scans, "measure_text", None)
        assert scan(text, measure=remembering) == first
        for again in (lambda: scan(text), lambda: scan(text, text_key="body", measure=remembering)):
            with pytest.raises(TypeError):
                again()
    (kept,) = (tmp_path / "scans").iterdir()
    kept.write_text("{")
    assert scan(text, measure=remembering) == first
    assert json.loads(kept.read_text())["n_documents"] == 40
    text.write_text(text.read_text().upper().replace('"TEXT"', '"text"'))
    with pytest.raises(DataError, match="changed while it was read"):
        Corpus.build(first, BYTES, cache=tmp_path / "cache")


def test_equal_documents_are_kept_once_wherever_they_are(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one<|endoftext|>two<|endoftext|>one<|endoftext|>three")
    (tmp_path / "b.txt").write_text("two<|endoftext|>four<|endoftext|>four")
    seen: set[bytes] = set()
    first, second = (scan(tmp_path / name, measure=partial(measure_text, seen=seen)) for name in ("a.txt", "b.txt"))
    assert [text for text, _ in first.pieces()] == ["one", "two", "three"]
    assert [text for text, _ in second.pieces()] == ["four"]
    assert (first.n_documents, first.text_bytes, first.document_lengths) == (3, 11, (3, 3, 5))
    assert (first.duplicates, second.duplicates) == ((2,), (0, 2))
    whole = scan([tmp_path / "a.txt", tmp_path / "b.txt"], measure=partial(measure_text, seen=set()))
    assert [text for text, _ in whole.pieces()] == ["one", "two", "three", "four"]
    assert whole.kept_hash != whole.content_hash == scan([tmp_path / "a.txt", tmp_path / "b.txt"]).kept_hash
    with pytest.raises(DataError, match=r"b\.txt contains only documents of other texts; give a file with text$"):
        scan(tmp_path / "b.txt", measure=partial(measure_text, seen=seen))


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=6))
def test_the_shares_are_those_of_the_weights(weights: list[float]) -> None:
    counts = shares(weights)
    assert sum(counts) == BLOCK
    assert all(abs(count - BLOCK * weight / sum(weights)) < 1 for count, weight in zip(counts, weights, strict=True))


def test_a_weight_too_small_for_any_sequence_is_an_error() -> None:
    expected = r"^mix: the weight of a.txt is 1e-05, which is too small; it must be at least 1/10,000 of all weights"
    with pytest.raises(ConfigError, match=expected):
        weighted(["web/=1", "a.txt=0.00001"])


def test_the_texts_of_a_mixture_have_weights() -> None:
    assert weighted(["web/=3", "a=b.txt=0.5"]) == [("web/", 3.0), ("a=b.txt", 0.5)]


@pytest.fixture
def mixed(tmp_path: Path) -> Corpus:
    write_rows(tmp_path / "web.jsonl", 300)
    (tmp_path / "books.txt").write_text("<|endoftext|>".join(f"UPPER CASE {n}" * 9 for n in range(60)))
    reading = ReadingConfig(mix=True)
    texts = find_texts([f"{tmp_path / 'web.jsonl'}=1", f"{tmp_path / 'books.txt'}=3"], reading)
    return texts.build(BYTES, cache=tmp_path / "cache")


def test_each_text_has_its_share_whatever_its_size(mixed: Corpus) -> None:
    size = 500
    batches = [mixed.batch(step, size, 8, seed=1)[0] for step in range(BLOCK // size)]
    upper = Counter(bool(((row >= ord("A")) & (row <= ord("Z"))).any()) for inputs in batches for row in inputs)
    assert upper[True] == 0.75 * BLOCK
    again = Corpus.load(mixed.path)
    assert again.fingerprint == mixed.fingerprint
    assert again.batch(3, size, 8, 1, rows=range(5, 5))[0].shape == (0, 8)  # a process may have none
    rows = again.batch(3, size, 8, 1, rows=range(5, 9))[0]
    assert np.array_equal(rows, batches[3][5:9])


def test_a_text_of_a_mixture_is_read_as_it_is_alone(mixed: Corpus, tmp_path: Path) -> None:
    alone = Corpus.build(tmp_path / "web.jsonl", BYTES, cache=tmp_path / "cache")
    texts: Any = [alone.train]
    found = mixture.windows(texts, [1.0], 2, 4, 8, seed=5)
    known = {tuple(row) for step in range(BLOCK // 4) for row in alone.batch(step, 4, 8, 5)[0].tolist()}
    assert {tuple(row[:8]) for row in found.tolist()} <= known


def test_the_validation_part_of_a_mixture_has_whole_documents_by_weight(mixed: Corpus) -> None:
    documents = bytes(mixed.validation[mixed.validation < 256].tolist())
    upper = sum(each < ord("a") and each != ord(" ") for each in documents)
    assert mixed.validation[-1] == BYTES.end_of_text
    assert 0.5 < upper / len(documents) < 0.9
    assert mixed.validation_bytes == len(documents)


END = 99


def held_out(parts: list[list[int]], weights: list[float]) -> list[int]:
    return mixture.held_out([np.array(part, np.uint16) for part in parts], weights, END).tolist()


def test_of_one_long_document_the_beginning_is_held_out() -> None:
    long, other = [*[1] * 999, END], [*[2] * 499, END]
    assert held_out([long, other], [1, 1]) == [*[1] * 499, END, *[2] * 499, END]
    assert held_out([long, other], [1, 2]) == [*[1] * 249, END, *[2] * 499, END]


def test_a_text_with_hardly_anything_held_out_leaves_the_others_theirs() -> None:
    long = [*[1] * 9, END] * 100
    assert held_out([long, []], [3, 1]) == long
    assert held_out([long, [2, END]], [3, 1]) == [*long[:370], 2, END]  # of a half of all, three quarters
    assert held_out([[], []], [3, 1]) == []


def test_other_weights_use_the_same_tokens(mixed: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minigpt.data.corpus.write_corpus", None)
    texts = find_texts([f"{tmp_path / 'web.jsonl'}=2", f"{tmp_path / 'books.txt'}=3"], ReadingConfig(mix=True))
    other = texts.build(BYTES, cache=tmp_path / "cache")
    assert other.fingerprint != mixed.fingerprint
    assert len(other.train) == len(mixed.train)


@given(st.lists(st.lists(st.integers(0, 99), max_size=5), min_size=1, max_size=4), st.data())
def test_joined_arrays_read_like_one(parts: list[list[int]], data: st.DataObject) -> None:
    arrays = [np.array(part, np.uint16) for part in parts]
    whole, joined = np.concatenate(arrays), JoinedArrays(arrays)
    assert len(joined) == len(whole)
    bound = st.none() | st.integers(-25, 25)
    key = slice(data.draw(bound), data.draw(bound), data.draw(st.sampled_from([None, 1, 2, 3, -1])))
    assert joined[key].tolist() == whole[key].tolist()
    if len(whole):
        positions = np.array(data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=2, max_size=2)))[:, None]
        assert np.array_equal(joined[positions], whole[positions])
