"""The speed that `minigpt train` prints when a run ends, from made-up figures."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from minigpt.autoplan import throughput
from minigpt.autoplan.throughput import Peak
from minigpt.cli.train_end import _speed
from minigpt.config import PRESETS, TrainConfig


@pytest.mark.parametrize(
    ("settings", "processes", "percent"),
    [({}, 1, 86), ({"lora": True}, 1, 61), ({"freeze": 6}, 1, 57), ({}, 2, 43), ({"distill": "on"}, 1, 114)],
)
def test_the_share_of_the_peak_counts_what_is_computed_and_all_processes(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], processes: int, percent: int
) -> None:
    monkeypatch.setattr(throughput, "peak", lambda *_: Peak(1e12, "1 TFLOP/s, measured"))
    config = TrainConfig(context_length=1024, dtype="float32", **settings)
    job: Any = SimpleNamespace(config=config, model=SimpleNamespace(config=PRESETS["gpt2"]))
    display: Any = SimpleNamespace(device=torch.device("cpu"), steps=1, tokens_per_step=1000, training_seconds=1.0)
    shown = _speed(job, display, processes)
    of = "" if processes == 1 else "2 times "
    assert shown == f"1,000 tokens/s, {percent}% of this machine's peak ({of}1 TFLOP/s, measured)"
