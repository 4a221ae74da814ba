"""The speed that `minigpt train` prints when a run ends, from made-up figures."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from minigpt.autoplan import annotations
from minigpt.autoplan.annotations import PlanAnnotations
from minigpt.autoplan.throughput import Peak
from minigpt.cli.render.annotations import Result
from minigpt.config import PRESETS, TrainConfig
from minigpt.runs.events import Started
from minigpt.training.events import Finished


@pytest.mark.parametrize(
    ("settings", "processes", "percent"),
    [({}, 1, 86), ({"lora": True}, 1, 61), ({"freeze": 6}, 1, 57), ({}, 2, 43), ({"distill": "on"}, 1, 114)],
)
def test_the_share_of_the_peak_counts_what_is_computed_and_all_processes(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], processes: int, percent: int
) -> None:
    monkeypatch.setattr(annotations, "peak", lambda *_: Peak(1e12, "1 TFLOP/s, measured"))
    config = TrainConfig(context_length=1024, dtype="float32", **settings)
    log: Any = SimpleNamespace(read_log=list, record=SimpleNamespace(comparable_evaluations=list))
    job: Any = SimpleNamespace(config=config, model=SimpleNamespace(config=PRESETS["gpt2"]), run=log)
    finished = Finished(10, "length", 10, None, None, 0, 1.0)
    started = Started(directory=Path("run"), step=0, device="cpu", total_steps=None, tokens_per_step=1000, baselines=())
    rows = PlanAnnotations(started).result_rows(Result(job, finished, 1000.0, processes))
    of = "" if processes == 1 else "2 times "
    assert rows["speed"] == f"1,000 tokens/s, {percent}% of this machine's peak ({of}1 TFLOP/s, measured)"
