"""The report has the plan of a run, and the advice that the terminal shows at its end."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from builders import new_model, new_run

from minigpt.cli.render.annotations import NextStep
from minigpt.errors import CheckpointError
from minigpt.reports.recorded_steps import record_steps, recorded_steps
from minigpt.reports.run_report import run_data
from minigpt.storage.run import Run

RESULT = {"step": 6, "reason": "length", "best_step": 6, "bits_per_byte": 2.0, "validation_loss": 3.0}


def data_of(path: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text("utf-8"), re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])["runs"][0]
    return data


def test_a_report_says_what_the_end_of_the_run_said_without_the_folders_of_the_machine(
    run: Any, here: Path, tiny: list[str]
) -> None:
    folder = here / "private"
    folder.mkdir()
    (here / "fox.txt").rename(folder / "fox.txt")
    result = run("train", str(folder / "fox.txt"), *tiny)
    assert result.exit_code == 0, result.output
    steps = data_of(here / "checkpoints/fox/report.html")["headline"]["nextSteps"]
    assert steps
    assert all(step["text"] in result.stderr for step in steps)
    commands = [command for step in steps for command in step["commands"]]
    assert any(command.startswith("minigpt train fox.txt ") for command in commands)
    assert "private" in result.stderr
    assert not any("private" in command for command in commands)
    written = (here / "checkpoints/fox/report.html").read_text("utf-8")
    run("report", "fox")
    assert (here / "checkpoints/fox/report.html").read_text("utf-8") == written
    assert run("train", "--resume", "--name", "fox", "--steps", "8", "--no-report").exit_code == 0
    assert run_data(here / "checkpoints/fox")["headline"]["nextSteps"] == []  # those of step 6 are no longer true


def test_a_report_has_the_table_of_the_plan(run: Any, here: Path, tiny: list[str]) -> None:
    printed = run("train", "fox.txt", *tiny, "--plan").stdout
    assert run("train", "fox.txt", *tiny).exit_code == 0
    tables = data_of(here / "checkpoints/fox/report.html")["tables"]
    plan = dict(next(table["rows"] for table in tables if table["title"] == "Plan"))
    assert plan["model"].endswith("; 1 layer, 2 heads, width 16 (--n-layer --n-head --n-embd)")
    assert plan["batch"].startswith("4 sequences, 64 tokens per step")
    assert all(name in printed for name in plan)


def test_a_command_in_a_report_names_texts_and_models_without_their_folders(tmp_path: Path) -> None:
    given = {"sources": ["/home/me/a b.txt", "-"], "from": "/home/me/models/gpt2", "result": RESULT}
    run = new_run(tmp_path / "run", new_model(n_layer=1), record=given)
    command = ("train", "/home/me/a b.txt", "MORE_TEXT", "--from", "/home/me/models/gpt2")
    record_steps(run, [NextStep("more text:", (command,)), NextStep("that is all")])
    assert recorded_steps(Run.open(run.directory).record) == [
        {"text": "more text:", "commands": ["minigpt train 'a b.txt' MORE_TEXT --from gpt2"]},
        {"text": "that is all", "commands": []},
    ]
    record_steps(run, [])
    assert recorded_steps(Run.open(run.directory).record) == []


@pytest.mark.parametrize(
    "damaged",
    [7, {}, ["x"], [{"text": 3, "commands": []}], [{"text": "a"}], [{"text": "a", "commands": [["b"]]}], "text"],
)
def test_a_damaged_advice_or_plan_is_not_shown(tmp_path: Path, damaged: object) -> None:
    corpus = {"fingerprint": "f", "train_bytes": 9, "train_tokens": 9}
    steps = damaged if damaged == 7 else {"after": 6, "steps": damaged}
    entries = {"corpus": corpus, "result": RESULT, "next_steps": steps, "plan": damaged}
    data = run_data(new_run(tmp_path / "run", new_model(n_layer=1), record=entries).directory)
    assert data["headline"]["nextSteps"] == []
    assert data["tables"][-2] == {"title": "Plan", "rows": []}


def test_a_run_that_is_training_again_has_no_advice(tmp_path: Path) -> None:
    entries = {"result": RESULT, "next_steps": {"after": 6, "steps": [{"text": "continue", "commands": []}]}}
    run = new_run(tmp_path / "run", new_model(n_layer=1), record=entries)
    assert len(run_data(run.directory)["headline"]["nextSteps"]) == 1
    assert run_data(run.directory, is_training=True)["headline"]["nextSteps"] == []


def test_a_run_does_not_fail_because_its_advice_cannot_be_recorded(
    run: Any, tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise CheckpointError("training.json could not be written: No space left on device")

    monkeypatch.setattr("minigpt.reports.run_pages.record_steps", refuse)
    result = run("train", "fox.txt", *tiny)
    assert result.exit_code == 0
    assert "the report has no advice: CheckpointError: training.json could not be written" in result.stderr
