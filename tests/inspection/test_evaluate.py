"""What `minigpt evaluate` measures is what an inspection predicts."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from builders import new_model

from minigpt.inspection.activations import predict
from minigpt.storage.checkpoint import load_checkpoint, save_checkpoint
from minigpt.tokenizer.tokenizer import Tokenizer


@pytest.fixture
def one(here: Path) -> Path:
    """A model of bytes with a context of 16, called one."""
    return save_checkpoint("checkpoints/one", new_model(), Tokenizer.named("bytes"))


def test_the_first_token_is_scored_after_an_end_of_text(run: Any, one: Path, here: Path) -> None:
    (here / "a.txt").write_text("a")
    shown = run("evaluate", "one", "a.txt").stdout
    assert "2 tokens, 1 byte;" in shown
    assert "every token scored once, the first after an end-of-text" in shown
    figures = json.loads(run("evaluate", "one", "a.txt", "--json").stdout)
    checkpoint = load_checkpoint(one, "cpu")
    end = checkpoint.tokenizer.end_of_text
    nats = -predict(checkpoint.model, [end, ord("a"), end]).logprobs[:2].sum().item()
    assert figures["bits_per_byte"] == pytest.approx(nats / math.log(2))
    assert figures["loss"] == pytest.approx(nats / 2)
