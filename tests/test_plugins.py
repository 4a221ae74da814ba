"""The five examples of docs/how-to/extend.md, installed as packages of their own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scripts import ROOT

import minigpt
from minigpt.config import GPTConfig
from minigpt.model.gpt import GPT

PLUGINS = ROOT / "tests" / "plugins"
TEXT = "The cat sat on the mat. The dog lay on the rug.\n" * 400
SMALL = ("--n-layer", "1", "--n-head", "2", "--n-embd", "32", "--context-length", "32", "--tokenizer", "bytes")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which pip has installed the examples."""
    sources, folder = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("installed")
    names = []
    for plugin in sorted(PLUGINS.iterdir()):
        names.append(str(sources / plugin.name))
        (sources / plugin.name).mkdir()
        for file in plugin.iterdir():  # pip builds inside the folder
            if file.is_file():
                (sources / plugin.name / file.name).write_bytes(file.read_bytes())
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--no-build-isolation", "--target", str(folder), *names], check=True)
    return folder


Run = Callable[..., str]


@pytest.fixture
def run(installed: Path, tmp_path: Path) -> Run:
    """Runs a minigpt command with the examples installed; returns its standard output."""
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")

    def succeed(*arguments: str) -> str:
        path = os.pathsep.join([str(installed), *filter(None, [os.environ.get("PYTHONPATH")])])
        done = subprocess.run(
            [sys.executable, "-m", "minigpt", *arguments],
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": path, "COLUMNS": "100"}, capture_output=True, text=True,
            timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    return succeed


def test_a_training_trick(run: Run, tmp_path: Path) -> None:
    """Lion's updates are signs: with one step and no decay, every weight moves by the learning rate or not at all."""
    assert "--lion" in run("train", "--help-all")
    assert "--lion" not in run("train", "--help")
    train = ("train", "text.txt", "--steps", "1", "--seed", "1", "--warmup-steps", "0", *SMALL)
    run(*train, "--lion", "--weight-decay", "0", "--learning-rate", "0.01", "--name", "lion")
    trained = minigpt.load_checkpoint(tmp_path / "checkpoints" / "lion")
    torch.manual_seed(1)
    begun = GPT(trained.model.config)
    moves = torch.cat(
        [(a - b).abs().flatten() for a, b in zip(trained.model.parameters(), begun.parameters(), strict=True)]
    )
    assert moves.max() > 0
    assert torch.isclose(moves, torch.tensor(0.001), atol=1e-6).logical_or(moves == 0).all()


def test_a_run_with_a_training_trick_resumes_bit_for_bit(run: Run, tmp_path: Path) -> None:
    fixed = ("--schedule", "constant", "--warmup-steps", "1", "--batch-size", "4", "--learning-rate", "0.01")
    train = ("train", "text.txt", "--lion", "--seed", "1", "--dropout", "0", "--dtype", "float32", *fixed, *SMALL)
    run(*train, "--steps", "8", "--name", "whole")
    run(*train, "--steps", "4", "--name", "parts")
    run("train", "--resume", "--name", "parts", "--steps", "8")
    states = [load_file(tmp_path / "checkpoints" / name / "last" / "state.safetensors") for name in ("whole", "parts")]
    assert any("momentum" in name for name in states[0])
    assert states[0].keys() == states[1].keys()
    assert all(states[0][name].equal(states[1][name]) for name in states[0])
    without = subprocess.run(
        [sys.executable, "-m", "minigpt", "train", "--resume", "--name", "parts", "--steps", "9"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (without.returncode, without.stderr) == (
        1,
        "minigpt: checkpoints/parts was trained with lion (True), which nothing installed has; install what adds it, "
        "or start a new run from its weights with --from parts\n",
    )


def test_a_text_format(run: Run, tmp_path: Path) -> None:
    cells = [{"cell_type": "markdown", "source": ["A cell.\n", TEXT]}, {"cell_type": "code", "source": "print(1)"}]
    (tmp_path / "notes.ipynb").write_text(json.dumps({"nbformat": 4, "cells": cells}), encoding="utf-8")
    (tmp_path / "notes.txt").write_text("\n\n".join("".join(cell["source"]) for cell in cells), encoding="utf-8")
    for name in ("notes.ipynb", "notes.txt"):
        run("train", name, "--steps", "2", "--name", name.replace(".", "_"), *SMALL)
    records = [minigpt.load_checkpoint(tmp_path / "checkpoints" / name).record for name in ("notes_ipynb", "notes_txt")]
    assert len({record.corpus.fingerprint for record in records if record is not None}) == 1


def test_a_weight_format(run: Run, tmp_path: Path) -> None:
    """The model continues a text as it does when it is saved by minigpt."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(n_positions=16, n_layer=2, n_head=2, n_embd=8)).eval()
    write_llmc(tmp_path / "model.bin", model)
    minigpt.save_checkpoint(tmp_path / "saved", model, minigpt.Tokenizer.named("gpt2"))
    generate = ("generate", "Once upon", "--max-new-tokens", "8", "--seed", "3", "-m")
    assert run(*generate, "model.bin") == run(*generate, "saved")


def write_llmc(path: Path, model: GPT) -> None:
    """Writes a model as llm.c's train_gpt2.py does in float32."""
    config, padded = model.config, 50304
    header = np.zeros(256, np.int32)
    header[:8] = (
        20240326,
        3,
        config.n_positions,
        config.vocab_size,
        config.n_layer,
        config.n_head,
        config.n_embd,
        padded,
    )
    wte = torch.zeros(padded, config.n_embd)
    wte[: config.vocab_size] = model.token_embedding.weight.detach()
    with path.open("wb") as file:
        file.write(header.tobytes())
        file.write(wte.numpy().tobytes())
        file.write(model.position_embedding.weight.detach().numpy().tobytes())
        for name in (
            "attention_norm.weight", "attention_norm.bias", "attention.qkv_proj.weight", "attention.qkv_proj.bias",
            "attention.out_proj.weight", "attention.out_proj.bias", "mlp_norm.weight", "mlp_norm.bias",
            "mlp.up_proj.weight", "mlp.up_proj.bias", "mlp.down_proj.weight", "mlp.down_proj.bias",
        ):  # fmt: skip
            for block in model.blocks:
                file.write(block.get_parameter(name).detach().numpy().tobytes())
        for parameter in model.final_norm.parameters():
            file.write(parameter.detach().numpy().tobytes())


def test_a_command(run: Run) -> None:
    assert "count" in run("--help")
    run("train", "text.txt", "--steps", "1", *SMALL)
    assert "token_embedding" in run("count", "text")
    assert "8,224" in run("count", "text")  # (256 + 1) * 32


def test_a_sink(run: Run, tmp_path: Path) -> None:
    run("train", "text.txt", "--steps", "4", "--eval-every", "2", "--csv", "losses.csv", *SMALL)
    rows = (tmp_path / "losses.csv").read_text(encoding="utf-8").splitlines()
    assert rows[0] == "step,validation_loss"
    assert [row.split(",")[0] for row in rows[1:]] == ["0", "2", "4"]


def test_the_page_shows_every_file_of_the_examples() -> None:
    page = (ROOT / "docs" / "how-to" / "extend.md").read_text(encoding="utf-8")
    files = [file for plugin in PLUGINS.iterdir() for file in plugin.iterdir() if file.suffix in (".py", ".toml")]
    assert [str(file) for file in files if file.read_text(encoding="utf-8") not in page] == []
