"""Runs on a text in shards: they end with the same weights whenever its shards were there."""

import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import minigpt
from minigpt.config import ReadingConfig
from minigpt.data.sharded import store
from minigpt.data.sharded.texts import find_texts, read_in_shards, weighted
from minigpt.errors import ConfigError, DataError

SMALL = {"n_layer": 1, "n_head": 1, "n_embd": 8, "context_length": 16, "batch_size": 8, "tokenizer": "bytes"}
WORDS = ["one", "two", "three", "four", "five", "six", "seven"]


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(store, "SHARD_BYTES", 2000)
    numbers = random.Random(0)
    path = tmp_path / "web.jsonl"
    rows = ({"text": f"{number} " + " ".join(numbers.choices(WORDS, k=15))} for number in range(500))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_resumed_run_on_a_text_that_is_still_tokenized_has_the_same_weights(
    text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = []
    for name, stops in (("whole", ()), ("stopped", (60,))):
        monkeypatch.setenv("MINIGPT_CACHE", str(text.parent / f"cache of {name}"))
        for stop in (*stops, None):
            resume = bool(stops) and stop != stops[0]
            settings: dict[str, Any] = {} if resume else {**SMALL, "shards": "on"}
            events = minigpt.fit(
                text, name=name, checkpoints=text.parent / "checkpoints", report=False, resume=resume, steps=160,
                **settings,
            )  # fmt: skip
            for event in events:
                if isinstance(event, minigpt.Step) and event.step == stop:
                    break
        weights.append(load_file(text.parent / "checkpoints" / name / "model.safetensors"))
    record = json.loads((text.parent / "checkpoints" / "stopped" / "training.json").read_text())
    assert record["reading"]["shards"] == "on"
    assert weights[0].keys() == weights[1].keys()
    assert all(np.array_equal(weights[0][each], weights[1][each]) for each in weights[0])


def test_the_size_of_the_text_decides_unless_the_settings_do(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not read_in_shards([str(text)], ReadingConfig())
    assert read_in_shards([str(text)], ReadingConfig(shards="on"))
    assert read_in_shards([str(text)], ReadingConfig(deduplicate=True))
    monkeypatch.setattr("minigpt.data.sharded.texts.IN_SHARDS", 1000)
    assert read_in_shards([str(text)], ReadingConfig())
    assert read_in_shards([str(text.parent)], ReadingConfig())
    assert read_in_shards([str(text.parent / "*.jsonl")], ReadingConfig())
    (text.parent / "scans").mkdir()
    (text.parent / "scans" / "large.pdf").write_bytes(b"%PDF" * 1000)
    assert not read_in_shards([str(text.parent / "scans"), str(text.parent / "scans" / "*.pdf")], ReadingConfig())
    (text.parent / "lost.jsonl").symlink_to("nowhere")
    assert not read_in_shards([str(text.parent / "lost*")], ReadingConfig())
    assert not read_in_shards([str(text)], ReadingConfig(shards="off"))
    assert not read_in_shards(["-"], ReadingConfig())
    assert not read_in_shards(["x" * 300], ReadingConfig())  # a text instead of its name; reading it says so


def test_the_runs_in_a_folder_do_not_count_for_its_size(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minigpt.data.sharded.texts.IN_SHARDS", text.stat().st_size + 1000)
    for name in ("config.json", "training.json", "log.jsonl"):
        (text.parent / "checkpoints" / "web" / name).parent.mkdir(parents=True, exist_ok=True)
        (text.parent / "checkpoints" / "web" / name).write_text(" " * 1000)
    assert not read_in_shards([str(text.parent)], ReadingConfig())
    (found,) = find_texts([str(text.parent)], ReadingConfig(shards="on")).files
    assert [file.path for file in found] == [text]


def test_the_texts_of_a_mixture_have_weights() -> None:
    assert weighted(["web/=3", "a=b.txt=0.5"], mix=True) == [("web/", 3.0), ("a=b.txt", 0.5)]
    assert weighted(["a=b.txt"], mix=False) == [("a=b.txt", 1.0)]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("web/", r"^mix needs a weight for each text, as in web/=3; web/ has none$"),
        ("=3", r"^mix needs a weight for each text"),
        ("web/=0", r"^mix: the weight of web/ is '0'; it must be a number above 0, as in web/=3$"),
        ("web/=-1", r"is '-1'; it must be a number above 0"),
        ("web/=much", r"is 'much'; it must be a number above 0"),
        ("web/=nan", r"is 'nan'; it must be"),
        ("web/=inf", r"is 'inf'; it must be"),
        ("web/=", r"is ''; it must be"),
    ],
)
def test_a_weight_that_is_none_is_an_error(source: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        weighted([source, "books/=1"], mix=True)


def test_what_needs_shards_cannot_be_had_without() -> None:
    with pytest.raises(ConfigError, match=r"^shards \(off\) cannot be combined with deduplicate"):
        ReadingConfig(deduplicate=True, shards="off")


def test_a_file_of_two_sources_is_read_once(text: Path) -> None:
    other = text.parent / "other.txt"
    other.write_text("one two")
    (text.parent / "linked.jsonl").symlink_to("web.jsonl")
    sources = [str(each) for each in (text.parent, text, text.parent / "linked.jsonl", other)]
    for given in (sources, sources[::-1]):
        (files,) = find_texts(given, ReadingConfig(shards="on")).files
        assert len(files) == 2
        assert {os.path.realpath(file.path) for file in files} == {str(text), str(other)}


def test_a_file_of_two_texts_of_a_mix_is_an_error_unless_duplicates_are_dropped(text: Path) -> None:
    other = text.parent / "other.txt"
    other.write_text("one two")
    sources = [f"{text.parent}=3", f"{other}=1"]
    with pytest.raises(ConfigError, match=r"^mix: \S+other\.txt is in two texts, so its held-out documents would be"):
        find_texts(sources, ReadingConfig(mix=True))
    assert len(find_texts(sources, ReadingConfig(mix=True, deduplicate=True)).files) == 2
    assert len(find_texts([f"{text}=3", f"{other}=1"], ReadingConfig(mix=True)).files) == 2


def test_a_pipe_a_document_and_an_empty_folder_cannot_be_read_in_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = ReadingConfig(shards="on")
    with pytest.raises(DataError, match=r"^- is a pipe, which cannot be read in shards; write the text to a file$"):
        find_texts(["-"], reading)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty has no text file; give a folder with"):
        find_texts([str(tmp_path / "empty")], reading)
    (tmp_path / "page.html").write_text("<p>text</p>")
    (tmp_path / "a.txt").write_text("text")
    monkeypatch.setattr("minigpt.data.source_files.read_document", None)
    for source in (tmp_path, tmp_path / "page.html", tmp_path / "*"):
        with pytest.raises(DataError, match=r"page\.html is a document, which cannot be read in shards; save it as"):
            find_texts([str(source)], reading)
