"""The report of a run that is training: written at each evaluation, it ends with the run and never fails it."""

import json
import re
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from builders import new_model, new_run

from minigpt.reports import REPORT
from minigpt.reports import run_pages as pages
from minigpt.reports.run_pages import ReportSink, RunningReport
from minigpt.runs.events import Event, Started
from minigpt.storage.run import Run
from minigpt.training.events import Evaluation, Finished, Notice, Step

HOSTILE = "</script><script>alert(1)</script>"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return new_run(tmp_path / "fox", new_model(n_layer=1))


@pytest.fixture(autouse=True)
def _always_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_SHARE", 1e9)


def data_of(path: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text("utf-8"), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def step(number: int, loss: float = 2.5) -> Step:
    return Step(
        step=number, progress=number / 80, loss=loss, learning_rate=0.01, gradient_norm=1.0, tokens=64 * number,
        seconds=130.0, seconds_left=125.0, tokens_per_second=5000.4,
    )  # fmt: skip


def evaluation(number: int) -> Evaluation:
    return Evaluation(step=number, validation_loss=2.0, bits_per_byte=2.5, tokens=64, seconds=1.0, best=True)


def started(run: Run) -> Started:
    return Started(directory=run.directory, step=0, device="cpu", total_steps=80, tokens_per_step=64, baselines=())


def keep_report(
    training: Generator[Event, None, None], run: Run, opened: Callable[[Path], None] | None = None
) -> Generator[Event, None, None]:
    """The events of training and those that the report adds, as of `run_job()`."""
    sink = ReportSink(run, watch=opened is not None)
    finished = None
    try:
        with closing(training):
            for event in training:
                finished = event if isinstance(event, Finished) else finished
                added = sink.receive(event)
                yield event
                yield from added
    finally:
        sink.close(finished)


def test_the_page_is_there_when_training_starts_and_changes_at_each_evaluation(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, opened = run.directory / REPORT, []
    shown = []

    def training() -> Generator[Event, None, None]:
        yield started(run)
        shown.append(data_of(path)["live"])
        for number in (1, 2):
            run.log({"step": number, "loss": 2.5, "learning_rate": 0.01, "tokens_per_second": 5000.0})
            yield step(number, 2.5 if number == 1 else float("nan"))
            yield Notice(number, f"skipped {HOSTILE}\nand more")
            yield evaluation(number)
            shown.append(data_of(path)["live"])
            assert data_of(path)["runs"][0]["training"]["step"] == list(range(1, number + 1))
            assert data_of(path)["runs"][0]["state"] == "training"

    monkeypatch.setattr(pages, "_open_page", opened.append)
    list(keep_report(training(), run, opened=opened.append))
    assert opened == [path]
    assert [live["status"] and live["status"]["step"] for live in shown] == [None, 1, 2]
    assert shown[0]["interval"] is None
    assert shown[2]["interval"] >= 0
    assert shown[1]["status"]["total_steps"] == 80
    assert [live["status"]["loss"] for live in shown[1:]] == [2.5, None]
    assert len(shown[2]["notices"]) == 2
    assert "\n" not in shown[2]["notices"][0]


def test_a_run_that_is_left_before_its_end_has_a_page_that_no_longer_reloads(run: Run) -> None:
    order = []

    def training() -> Generator[Event, None, None]:
        try:
            yield started(run)
            yield step(1)
        finally:
            order.append(data_of(run.directory / REPORT)["live"] is not None)

    events = keep_report(training(), run)
    next(events)
    next(events)
    events.close()
    assert order == [True]  # training was closed, and saved, before the page ended
    assert data_of(run.directory / REPORT)["live"] is None


def test_a_page_that_fails_is_one_notice(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("no luck")

    def training() -> Generator[Event, None, None]:
        yield started(run)
        yield evaluation(1)
        yield evaluation(2)

    monkeypatch.setattr(pages, "write_report", fail)
    opened: list[Path] = []
    monkeypatch.setattr(pages, "_open_page", opened.append)
    events = list(keep_report(training(), run, opened=opened.append))
    assert [event.text for event in events if isinstance(event, Notice)] == [
        "no report is written during training: ZeroDivisionError: no luck"
    ]
    assert len(events) == 4
    assert opened == []


def test_a_page_that_takes_long_is_written_less_often(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_SHARE", 0.01)
    now = [1000.0]
    monkeypatch.setattr(pages.time, "time", lambda: now[0])
    written = []

    def write(*_: object, **options: Any) -> None:
        written.append(options["live"]["interval"])
        now[0] += 2.0

    monkeypatch.setattr(pages, "write_report", write)
    page = RunningReport(run, run.directory / REPORT, None)
    for _ in range(60):  # an evaluation every 10 s
        page.write()
        now[0] += 10.0
    assert written == [None, 202.0, 202.0]
