"""The planner of the spine: fixed choices for what the user did not give, and a table of the plan."""

from pathlib import Path
from typing import Any

import pytest

from minigpt.errors import ConfigError
from minigpt.run_options import Request, RunOptions
from minigpt.runs import start_run
from minigpt.runs.plan import Plan, Planner

FOX = "the quick brown fox jumps over the lazy dog; "


@pytest.fixture(autouse=True)
def _without_edges(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MINIGPT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(start_run, "planner", Planner)


def plan_of(folder: Path, repeats: int = 100, **options: Any) -> Plan:
    text = folder / "fox.txt"
    text.write_text(FOX * repeats)
    request = Request(sources=(str(text),), checkpoints=folder, options=RunOptions.of({"device": "cpu", **options}))
    generator = start_run.plan_run(request)
    while True:
        try:
            next(generator)
        except StopIteration as end:
            plan: Plan = end.value
            return plan


def test_a_tiny_text_has_bytes_and_some_steps(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    assert (plan.preset, plan.corpus.tokenizer.name, plan.training.steps) == ("nano", "bytes", 300)
    assert plan.training.minutes is None
    assert plan.tokens_per_step <= len(plan.corpus.train) // 8
    assert plan.steps == 300


def test_a_longer_text_has_merges_and_five_minutes(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, 10_000, tokenizer="bpe:300")
    assert (plan.preset, plan.training.minutes, plan.steps) == ("micro", 5.0, None)
    assert plan.model.n_positions == plan.training.context_length


def test_what_is_given_is_kept(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, steps=7, batch_size=3, context_length=16, optimizer="adamw", patience=0, n_layer=1)
    assert (plan.training.steps, plan.training.batch_size, plan.training.context_length) == (7, 3, 16)
    assert (plan.training.optimizer, plan.training.patience, plan.model.n_layer) == ("adamw", 0, 1)


def test_the_table_has_no_figure_that_was_not_measured(tmp_path: Path) -> None:
    names = [name for name, _, _ in plan_of(tmp_path).rows()]
    assert names[:3] == ["text", "tokenizer", "tokens"]
    assert not {"speed", "memory", "expected"} & set(names)


def test_no_text_is_an_error() -> None:
    with pytest.raises(ConfigError, match="there is no text to train on"):
        next(start_run.plan_run(Request()))
