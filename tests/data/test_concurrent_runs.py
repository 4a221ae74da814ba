"""Two runs that read the same new text at the same time share one corpus."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock, Timeout

from minigpt.data.sharded import sharded_corpus, store
from minigpt.data.sharded.sharded_corpus import ShardedCorpus
from minigpt.data.source_files import SourceFile


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(store, "SHARD_BYTES", 2000)
    path = tmp_path / "web.txt"
    path.write_text("<|endoftext|>".join(f"document {number} " * 3 for number in range(300)))
    return path


def build(path: Path) -> ShardedCorpus:
    return ShardedCorpus.build_in_shards([[SourceFile(path, path.name)]], [1.0], "bytes", cache=path.parent / "cache")


def test_one_of_two_runs_describes_the_corpus_and_the_other_opens_it(
    text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe, found = sharded_corpus._describe, []
    started = threading.Event()

    def while_another_run_starts(mixture: Any, *arguments: Any) -> None:
        started.set()
        with pytest.raises(Timeout), FileLock(mixture.folder / "corpus.lock", timeout=0, is_singleton=False):
            pass
        describe(mixture, *arguments)
        found.append(mixture.folder)

    monkeypatch.setattr(sharded_corpus, "_describe", while_another_run_starts)
    other: list[ShardedCorpus] = []
    thread = threading.Thread(target=lambda: started.wait() and other.append(build(text)))
    thread.start()
    corpus = build(text)
    thread.join()
    assert found == [corpus.path]
    assert np.array_equal(other[0].validation, corpus.validation)


def test_the_tokenizer_of_another_run_is_not_written_again(text: Path) -> None:
    folder = build(text).path
    (folder / "tokenizer_config.json").write_text("damaged")
    before = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.json")}
    build(text)
    after = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.json")}
    assert before["tokenizer.json"] == after["tokenizer.json"]
    assert "damaged" not in (folder / "tokenizer_config.json").read_text()
    assert not [path for path in folder.iterdir() if path.is_dir()]
