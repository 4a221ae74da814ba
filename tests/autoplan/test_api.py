"""`minigpt.plan`, and `minigpt.fit` of a plan."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import minigpt
from minigpt.cli.app import app
from minigpt.errors import ConfigError
from minigpt.storage.run import Run

SETTINGS: dict[str, Any] = {
    "n_layer": 1, "n_head": 2, "n_embd": 16, "context_length": 16, "batch_size": 4, "tokenizer": "bytes", "steps": 6,
    "eval_every": 3, "device": "cpu", "dtype": "float32", "dropout": 0.1,
}  # fmt: skip


FLAGS = [text for name, value in SETTINGS.items() for text in (f"--{name.replace('_', '-')}", str(value))]


def typed(*arguments: str) -> Any:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result


def test_a_plan_prints_the_table_of_the_command_line(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minigpt.autoplan.throughput.seconds_per_step", lambda *_, **__: 0.1)
    monkeypatch.setattr("minigpt.autoplan.planner._MUCH_COPIED", 2.0)  # the command line prints notes on stderr
    table = str(minigpt.plan("fox.txt", **SETTINGS))
    printed = typed("train", "fox.txt", *FLAGS, "--plan").stdout

    def lines(text: str) -> set[str]:
        return {" ".join(line.split()) for line in text.splitlines() if "done at" not in line}

    assert lines(printed) - lines(table) == {"change it with"}
    assert lines(table) <= lines(printed)
    assert not (here / "checkpoints").exists()


def test_a_plan_is_trained_as_planned_and_its_measuring_counts_once(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = minigpt.plan("fox.txt", name="planned", **SETTINGS)
    monkeypatch.setattr("minigpt.autoplan.throughput.seconds_per_step", lambda *_, **__: pytest.fail("measured again"))
    events = list(minigpt.fit(plan, report=False))
    assert isinstance(events[-1], minigpt.Finished)
    record = Run.open(here / "checkpoints/planned").record
    assert record.training == plan.training
    assert record.model == plan.model
    for other in ({"steps": 3}, {"checkpoints": "elsewhere"}, {"checkpoints": "checkpoints"}):
        with pytest.raises(ConfigError, match="a plan has its settings"):
            minigpt.fit(plan, **other)
