"""A folder with a text and a `minigpt` command, for programs on the hosts of a test."""

import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from minigpt.storage.run import Run

ROOT = Path(__file__).parents[2]
TEXT = "the quick brown fox jumps over the lazy dog; " * 60
TINY = [
    *("fox.txt", "--n-layer", "1", "--n-head", "2", "--n-embd", "16", "--context-length", "16", "--batch-size", "4"),
    *("--tokenizer", "bytes", "--device", "cpu", "--dtype", "float32", "--dropout", "0.1"),
    *("--eval-every", "100000", "--patience", "0", "--sample-every", "0", "--no-report"),
]


@pytest.fixture(scope="session")
def tiny() -> list[str]:
    """The text and the settings of a run."""
    return TINY


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that all hosts share, with fox.txt and bin/minigpt."""
    path = tmp_path_factory.mktemp("shared")
    (path / "fox.txt").write_text(TEXT)
    (path / "bin").mkdir()
    command = path / "bin" / "minigpt"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m minigpt "$@"\n')
    command.chmod(0o755)
    return path


@pytest.fixture(scope="module")
def environment(folder: Path) -> dict[str, str]:
    """The environment variables of a command on a host."""
    return {
        **os.environ,
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "MINIGPT_CACHE": str(folder / "minigpt-cache"),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "120",
    }


@pytest.fixture(scope="module")
def saved(folder: Path) -> Callable[[str], int]:
    """The step of the last saved state of a run, by name; -1 before the first."""

    def step(name: str) -> int:
        path = folder / "checkpoints" / name
        progress = Run.open(path).last_progress() if (path / "training.json").exists() else None
        return progress["step"] if progress else -1

    return step


@pytest.fixture(scope="module")
def check_same(folder: Path) -> Callable[[str, str], None]:
    """Asserts that two runs have logged the same losses and have the same weights and state, bit for bit."""

    def check(one: str, other: str) -> None:
        runs = [Run.open(folder / "checkpoints" / name) for name in (one, other)]
        losses = [[(line["step"], line["loss"]) for line in run.read_log() if "loss" in line] for run in runs]
        assert losses[0]
        assert losses[0] == losses[1]
        states = [run.load_last() for run in runs]
        assert states[0] is not None
        assert states[1] is not None
        assert states[0].tensors.keys() == states[1].tensors.keys()
        for name, tensor in states[0].tensors.items():
            assert torch.equal(tensor, states[1].tensors[name]), name

    return check
