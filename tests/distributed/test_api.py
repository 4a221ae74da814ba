"""Runs of several devices and Python, which has one."""

from pathlib import Path
from typing import Any

import pytest

import minigpt
from minigpt.errors import ConfigError
from minigpt.storage.run import Run

SETTINGS: dict[str, Any] = {
    "n_layer": 1, "n_head": 2, "n_embd": 16, "context_length": 16, "batch_size": 4, "tokenizer": "bytes", "steps": 6,
    "eval_every": 3, "device": "cpu", "dtype": "float32", "dropout": 0.1,
}  # fmt: skip


def test_a_run_on_several_devices_is_not_resumed_in_python_on_one_unless_that_is_asked(here: Path) -> None:
    list(minigpt.fit("fox.txt", report=False, **SETTINGS))
    run = Run.open(here / "checkpoints/fox")
    assert run.record.training is not None
    run.update(training=run.record.training.replace(devices=2))
    with pytest.raises(ConfigError, match=r"devices \(2\) must be 1 in Python"):
        list(minigpt.fit(resume=True, steps=8))
    *_, finished = minigpt.fit(resume=True, steps=8, devices=1, report=False)
    assert isinstance(finished, minigpt.Finished)


def test_python_trains_on_one_device(here: Path) -> None:
    with pytest.raises(ConfigError, match=r"devices \(2\) must be 1 in Python"):
        minigpt.fit("missing.txt", devices=2)
