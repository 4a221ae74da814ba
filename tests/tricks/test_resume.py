"""A run that is resumed with other tricks."""

from pathlib import Path
from typing import Any

import pytest

import minigpt
from minigpt.errors import MinigptError

SETTINGS: dict[str, Any] = {
    "n_layer": 1, "n_head": 2, "n_embd": 16, "context_length": 16, "batch_size": 4, "tokenizer": "bytes", "steps": 6,
    "eval_every": 3, "device": "cpu", "dtype": "float32", "report": False,
}  # fmt: skip


def test_bpe_dropout_without_merges_leaves_the_run_as_it_was(here: Path) -> None:
    list(minigpt.fit("fox.txt", **SETTINGS))
    record = (here / "checkpoints/fox/training.json").read_bytes()
    with pytest.raises(MinigptError, match="bpe_dropout needs a tokenizer with merges"):
        list(minigpt.fit(resume=True, steps=8, bpe_dropout=0.1, allow_change=True))
    assert (here / "checkpoints/fox/training.json").read_bytes() == record
    *_, finished = minigpt.fit(resume=True, steps=8)
    assert isinstance(finished, minigpt.Finished)
