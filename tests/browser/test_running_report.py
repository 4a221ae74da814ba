"""The report of a run that is training, in a real browser: it shows the progress and reloads itself."""

import time
from pathlib import Path
from typing import Any

import pytest
from builders import new_model, new_run

from minigpt.reports import REPORT
from minigpt.reports import run_pages as pages
from minigpt.reports.run_pages import RunningReport
from minigpt.reports.run_report import write_report
from minigpt.storage.run import Run
from minigpt.training.events import Notice, Step

HOSTILE = "<b>x</b></script><script>alert(1)</script>"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = new_run(tmp_path / "fox", new_model(n_layer=1))
    for step in range(1, 41):
        run.log({"step": step, "loss": 2 + 3 / step, "learning_rate": 0.01, "tokens_per_second": 5000.0})
    return run


@pytest.fixture
def page(run: Run, monkeypatch: pytest.MonkeyPatch) -> RunningReport:
    monkeypatch.setattr(pages, "_SHARE", 1e9)
    page = RunningReport(run, run.directory / REPORT, 80)
    page.observe(
        Step(
            step=40, progress=0.5, loss=2.5, learning_rate=0.01, gradient_norm=1.0, tokens=64, seconds=130.0,
            seconds_left=125.0, tokens_per_second=5000.0,
        )
    )  # fmt: skip
    return page


def wait_for(browser: Any, condition: str) -> None:
    for _ in range(500):
        if browser.ask(condition):
            return
        time.sleep(0.02)
    raise AssertionError(f"never true: {condition}\n{browser.ask('document.body.innerText')}")


def test_the_page_shows_the_progress_and_reloads_until_the_run_has_ended(
    browser: Any, page: RunningReport, run: Run
) -> None:
    page.observe(Notice(3, f"skipped step 3 {HOSTILE}"))
    page.write()
    page.write()  # a moment later, so that the next page is due at once
    browser.open(run.directory / REPORT)
    shown = browser.ask("document.querySelector('.live').innerText")
    texts = ("50%", "2 min 5 s left", "40 of 80", "5,000 tokens per second", "2.5000 nats per token", "2 min 10 s")
    for text in (*texts, HOSTILE):
        assert text in shown
    write_report([run.directory], run.directory / REPORT)
    browser.wait_for_reload()
    wait_for(browser, "document.querySelector('header').innerText.includes('not finished: 40 steps so far')")
    assert browser.ask("document.querySelector('.live')") is None
    assert browser.errors == []


def test_the_page_says_that_the_run_may_have_stopped(
    browser: Any, page: RunningReport, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    monkeypatch.setattr(pages.time, "time", lambda: now - 600)
    page.write()
    browser.open(run.directory / REPORT)
    assert "has written nothing for 10 min" in browser.ask("document.querySelector('.connection').textContent")


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_fits_the_window(browser: Any, page: RunningReport, run: Run, width: int) -> None:
    page.observe(Notice(3, "averylongnotice" * 30))
    page.write()
    browser.open(run.directory / REPORT, width=width)
    assert browser.ask("document.documentElement.scrollWidth") <= width
