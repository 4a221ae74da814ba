"""`minigpt info`, `evaluate` and `load-gpt2` from the outside."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from minigpt.config import GPTConfig
from minigpt.model.gpt import GPT
from minigpt.storage.checkpoint import save_checkpoint
from minigpt.tokenizer.tokenizer import Tokenizer

SHAPE = GPTConfig(vocab_size=257, n_positions=16, n_embd=16, n_layer=1, n_head=2)


def make_model(directory: str, config: GPTConfig = SHAPE, tokenizer: str = "bytes") -> Path:
    torch.manual_seed(0)
    return save_checkpoint(directory, GPT(config), Tokenizer.named(tokenizer))


def test_info_shows_config_size_and_training_record(run: Any, tiny: list[str]) -> None:
    run("train", "fox.txt", *tiny)
    shown = run("info")
    assert shown.exit_code == 0
    for text in ("checkpoints/fox", "n embd", "16", "tokenizer", "bytes, 257 words", "validation loss", "seed"):
        assert text in shown.stdout
    record = json.loads(run("info", "fox", "--json").stdout)
    assert record["parameters"] == record["training"]["model"]["vocab_size"] * 16 + 16 * 16 + 3280 + 32
    assert record["config"]["n_layer"] == 1


def test_evaluate_states_figures_and_protocol(run: Any) -> None:
    make_model("checkpoints/one")
    result = run("evaluate", "one", "fox.txt", "--device", "cpu")
    assert result.exit_code == 0, result.stderr
    for text in ("nats per token", "perplexity", "bits per byte", "context 16, stride 8"):
        assert text in result.stdout
    figures = json.loads(run("evaluate", "one", "fox.txt", "--json", "--stride", "16", "--device", "cpu").stdout)
    assert figures["loss"] == pytest.approx(math.log(257), abs=0.1)  # an untrained model knows nothing
    n_bytes = len("the quick brown fox jumps over the lazy dog; ") * 60
    assert figures["tokens"] == n_bytes + 1  # the end-of-text is one, and counts as no byte
    assert figures["bytes"] == n_bytes
    assert figures["perplexity"] == pytest.approx(math.exp(figures["loss"]))
    assert figures["bits_per_byte"] == pytest.approx(figures["loss"] / math.log(2), rel=1e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["info"], "minigpt train corpus.txt"),
        (["info", "nothing"], "no model 'nothing'"),
        (["evaluate", "nothing", "fox.txt"], "no model 'nothing'"),
        (["load-gpt2", "gpt3"], "gpt3"),
        (["load-gpt2", "--from", "nowhere"], "nowhere is not there"),
    ],
)
def test_wrong_input_is_one_line_on_stderr(run: Any, here: Path, arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 1
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (here / "checkpoints").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["missing.txt"], "missing.txt"), (["fox.txt", "--stride", "17"], "stride (17) must be from 1 to the context")],
)
def test_evaluation_that_cannot_be_is_one_line(run: Any, arguments: list[str], message: str) -> None:
    make_model("checkpoints/one")
    result = run("evaluate", "one", *arguments)
    assert result.exit_code == 1
    assert message in result.stderr


def test_load_gpt2_from_a_folder_shows_what_came_and_the_line_to_try(run: Any, here: Path) -> None:
    shape = GPTConfig(vocab_size=50257, n_positions=32, n_embd=8, n_layer=2, n_head=2)
    make_model("downloads/small-gpt2", shape, "gpt2")
    result = run("load-gpt2", "--from", "downloads/small-gpt2", "--name", "mine", "--device", "cpu")
    assert result.exit_code == 0, result.stderr
    assert f"{shape.n_parameters:,}" in result.stderr
    assert "published outputs: unknown" in result.stderr
    assert result.stdout.strip() == "minigpt generate 'Once upon a time' --model mine"
    assert run("generate", "Once", "--model", "mine", "--max-new-tokens", "3", "--device", "cpu").exit_code == 0
