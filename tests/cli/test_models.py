"""`minigpt info`, `evaluate` and `load-gpt2`."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from builders import new_model

from minigpt.storage.checkpoint import load_checkpoint, save_checkpoint
from minigpt.tokenizer.tokenizer import Tokenizer


def save_model(directory: str, tokenizer: str = "bytes", **shape: int) -> Path:
    return save_checkpoint(directory, new_model(**shape), Tokenizer.named(tokenizer))


def test_info_shows_shape_size_and_training_record(run: Any, tiny: list[str]) -> None:
    run("train", "fox.txt", *tiny)
    shown = run("info")
    assert shown.exit_code == 0
    for text in ("checkpoints/fox", "1 layer, 2 heads, width 16", "bytes, 257 tokens", "validation loss", "seed"):
        assert text in shown.stdout
    record = json.loads(run("info", "fox", "--json").stdout)
    assert record["parameters"] == record["training"]["model"]["vocab_size"] * 16 + 16 * 16 + 3280 + 32
    assert record["config"]["n_layer"] == 1


@pytest.mark.parametrize(
    "function", ["minigpt.pretrained.open_model.load_model", "minigpt.generation.resolve_engine.resolve_engine"]
)
@pytest.mark.parametrize("command", [("generate", "abc"), ("play",)], ids=["generate", "play"])
def test_memory_that_runs_out_while_a_model_is_loaded_is_one_sentence(
    run: Any, monkeypatch: pytest.MonkeyPatch, function: str, command: tuple[str, ...]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9000000000 bytes")

    save_model("checkpoints/one")
    monkeypatch.setattr(function, fail)
    result = run(*command, "--device", "cpu")
    assert result.exit_code == 1
    assert "minigpt: out of memory while loading " in result.stderr
    assert "give a smaller model" in result.stderr
    assert "Traceback" not in result.stderr


def test_info_shows_units_and_paths_as_one_types_them(
    run: Any, tiny: list[str], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("train", "fox.txt", *tiny)
    monkeypatch.setenv("HOME", str(here.parent))
    lines = run("info").stdout.splitlines()
    for expected in ("texts fox.txt", "context length 16 tokens", "steps 6 steps", "eval every 3 steps", "seed 1337"):
        assert any(" ".join(line.split()) == expected for line in lines), expected
    assert str(here) not in run("info").stdout
    (here / "below").mkdir()
    monkeypatch.chdir(here / "below")
    above = run("info", str(here / "checkpoints/fox")).stdout
    assert f"~/{here.name}/fox.txt" in above
    assert str(here.parent) not in above


def test_info_shows_a_run_although_the_home_folder_is_unknown(
    run: Any, tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pwd = pytest.importorskip("pwd")
    run("train", "fox.txt", *tiny)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)  # raises KeyError, as for a user without an entry
    assert "fox.txt" in run("info").stdout


def test_evaluate_prints_figures_and_protocol(run: Any) -> None:
    save_model("checkpoints/one", n_layer=1)
    result = run("evaluate", "one", "fox.txt", "--device", "cpu")
    assert result.exit_code == 0, result.stderr
    for text in ("nats per token", "perplexity", "bits per byte", "context 16, stride 8"):
        assert text in result.stdout
    figures = json.loads(run("evaluate", "one", "fox.txt", "--json", "--stride", "16", "--device", "cpu").stdout)
    assert figures["loss"] == pytest.approx(math.log(257), abs=0.1)  # an untrained model predicts all tokens alike
    n_bytes = len("the quick brown fox jumps over the lazy dog; ") * 60
    assert figures["tokens"] == n_bytes + 1  # the end-of-text token is scored, but has no bytes
    assert figures["bytes"] == n_bytes
    assert figures["perplexity"] == pytest.approx(math.exp(figures["loss"]))
    assert figures["bits_per_byte"] == pytest.approx(figures["loss"] / math.log(2), rel=1e-3)


def test_load_gpt2_from_a_folder_shows_the_model_and_a_command_to_try(run: Any, here: Path) -> None:
    folder = save_model("downloads/small-gpt2", "gpt2", vocab_size=50257, n_positions=32, n_embd=8)
    result = run("load-gpt2", "--from", "downloads/small-gpt2", "--name", "mine", "--device", "cpu")
    assert result.exit_code == 0, result.stderr
    assert f"{load_checkpoint(folder).model.config.n_parameters:,}" in result.stderr
    assert "no published outputs to compare with" in result.stderr
    assert result.stdout.strip() == "minigpt generate 'Once upon a time' --model mine"
    assert run("generate", "Once", "--model", "mine", "--max-new-tokens", "3", "--device", "cpu").exit_code == 0
