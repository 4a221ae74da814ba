"""`minigpt evaluate --benchmark`."""

import json
from pathlib import Path
from typing import Any

import pytest
from builders import new_model

from minigpt.storage.checkpoint import save_checkpoint
from minigpt.tokenizer.tokenizer import Tokenizer


@pytest.fixture
def one(here: Path) -> Path:
    """A model of bytes with a context of 16, called one."""
    return save_checkpoint("checkpoints/one", new_model(), Tokenizer.named("bytes"))


@pytest.fixture
def lambada(here: Path) -> Path:
    path = here / "passages.jsonl"
    path.write_text('{"text": "a passage that is longer than the context"}\n{"text": "the fox"}\n{"text": "a dog"}\n')
    return path


def test_the_benchmarks_before_an_interrupt_are_printed(
    run: Any, one: Path, lambada: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("minigpt.benchmarks.cbt.read_questions", interrupted)
    lambada.rename("lambada_test.jsonl")
    for kind in ("CN", "NE"):
        Path(f"cbtest_{kind}_valid_2000ex.txt").touch()
    result = run("evaluate", "one", "lambada", "cbt", "--data", ".", "--json")
    assert (result.exit_code, result.stderr) == (130, "minigpt: stopped\n")
    assert [each["benchmark"] for each in json.loads(result.stdout)["benchmarks"]] == ["lambada"]
    alone = run("evaluate", "one", "cbt", "--data", ".", "--json")
    assert (alone.exit_code, alone.stdout) == (130, "")
