"""The page of a run that is training: only what has changed is sent, and the end is the report of the run."""

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from builders import new_model, new_run

from minigpt.reports import live_run
from minigpt.reports.live_run import LiveRun, LiveStatus, ThinnedLines
from minigpt.reports.run_report import run_data
from minigpt.storage.run import Run
from minigpt.storage.run_record import Result
from minigpt.tokenizer.tokenizer import Tokenizer


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_run, "_SECONDS", 0.0)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    corpus = {"fingerprint": "f00d", "train_bytes": 1000, "train_tokens": 500}
    return new_run(tmp_path / "fox", new_model(n_layer=1), record={"corpus": corpus})


def live_of(run: Run) -> LiveRun:
    return LiveRun(run, Tokenizer.named("bytes"))


def step(number: int, **entries: Any) -> dict[str, Any]:
    return {"step": number, "loss": 2.0, "learning_rate": 0.01, "tokens_per_second": 100.0, **entries}


def status(number: int, loss: float = 2.0) -> LiveStatus:
    return LiveStatus(
        step=number, total_steps=10, progress=number / 10, seconds=1.0, seconds_left=9.0, loss=loss, learning_rate=0.01
    )


def test_a_reader_gets_everything_at_first_and_then_what_has_changed(run: Run) -> None:
    live = live_of(run)
    run.log(step(1))
    first = live.changes()
    assert set(first.parts) == {*run_data(run.directory), "live"}
    assert first.parts["training"]["step"] == [1]
    assert live.changes(first.revision).parts == {}
    live.report(status(1))
    assert set(live.changes(first.revision).parts) == {"live"}
    run.log({"step": 1, "prompt": "a", "sample": "text"})
    second = live.changes(first.revision)
    assert set(second.parts) == {"live", "samples"}
    assert [sample["text"] for sample in second.parts["samples"]] == ["text"]
    assert live.changes(second.revision + 7).parts.keys() == first.parts.keys()  # a revision that never was


def test_the_status_has_the_present_speed_and_no_nan(run: Run) -> None:
    live = live_of(run)
    assert live.changes().parts["live"] == {"status": None, "tokensPerSecond": None, "notices": []}
    for number in range(1, 31):
        run.log(step(number, tokens_per_second=50.0 if number <= 10 else 200.0))
    live.report(status(30, math.nan))
    live.notice("skipped step 3")
    shown = live.changes().parts["live"]
    assert shown["tokensPerSecond"] == 200  # of the last 20 steps
    assert shown["status"]["loss"] is None
    assert shown["notices"] == ["skipped step 3"]


def test_only_the_last_notices_are_kept(run: Run) -> None:
    live = live_of(run)
    for number in range(200):
        live.notice(str(number))
    assert live.changes().parts["live"]["notices"] == [str(number) for number in range(150, 200)]


def test_a_run_that_rolls_back_loses_its_later_steps(run: Run) -> None:
    live = live_of(run)
    for number in range(1, 6):
        run.log(step(number))
    first = live.changes()
    run.truncate_log(2, frozenset({"loss"}))
    run.log(step(3, loss=1.5))
    parts = live.changes(first.revision).parts
    assert parts["training"]["step"] == [1, 2, 3]
    assert parts["training"]["loss"] == [2.0, 2.0, 1.5]


def test_the_passage_follows_the_evaluations(run: Run) -> None:
    live = live_of(run)
    first = live.changes()
    assert first.parts["passage"] is None
    run.log({"step": 4, "validation_loss": 2.0, "bits_per_byte": 2.9, "passage": [104, 105], "surprise": [0.5]})
    parts = live.changes(first.revision).parts
    assert parts["passage"]["tokens"] == ["h", "i"]
    assert parts["headline"]["bits"] == 2.9


def test_the_result_of_the_run_before_it_was_resumed_is_not_shown(run: Run) -> None:
    run.update(result=Result(step=5, bits_per_byte=1.0))
    parts = live_of(run).changes().parts
    assert parts["headline"]["bits"] is None
    assert parts["state"] == "training"


def test_the_end_is_the_report_and_nothing_changes_after_it(run: Run) -> None:
    live = live_of(run)
    run.log(step(1))
    first = live.changes()
    assert not first.is_final
    assert not live.wait(0)
    live.finish(run_data(run.directory))
    assert live.wait(0)
    last = live.changes(first.revision)
    assert last.is_final
    assert last.parts["live"] is None
    run.log(step(2))
    whole = live.changes()
    assert whole.parts == {**run_data(run.directory), **whole.parts}
    assert whole.parts["training"]["step"] == [1]


def test_what_is_computed_does_not_depend_on_the_number_of_readers(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_run, "_SECONDS", 1000.0)
    live, calls = live_of(run), []
    monkeypatch.setattr(live._follower, "read", lambda: calls.append(0) or ([], False))
    for _ in range(5):
        live.changes()
    assert len(calls) == 1


def test_a_long_run_keeps_evenly_spread_lines_and_the_last(run: Run) -> None:
    thinned = ThinnedLines(100)
    assert thinned.lines() == []
    for number in range(10_007):
        thinned.add({"step": number})
    steps = [line["step"] for line in thinned.lines()]
    assert 50 <= len(steps) <= 102
    assert (steps[0], steps[-1]) == (0, 10_006)
    assert {after - before for before, after in pairwise(steps[:-1])} == {128}


@pytest.mark.parametrize(
    ("held_out", "reason"), [(100, "the first evaluation has not ended"), (0, "no text is held out")]
)
def test_a_run_without_a_measured_passage_says_why(tmp_path: Path, held_out: int, reason: str) -> None:
    corpus = {"fingerprint": "f00d", "train_bytes": 1000, "train_tokens": 500, "validation_bytes": held_out}
    run = new_run(tmp_path / "fox", new_model(n_layer=1), record={"corpus": corpus})
    assert live_of(run).changes().parts["whyNoPassage"] == reason
