"""The page of a run that is training, in a real browser: it follows the run and becomes its report, not reloaded."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders import new_model, new_run

from minigpt.reports import live_run, live_server
from minigpt.reports.live_run import LiveRun, LiveStatus
from minigpt.reports.live_server import LiveServer
from minigpt.reports.run_report import run_data
from minigpt.storage.run import Run
from minigpt.storage.run_record import Result
from minigpt.tokenizer.tokenizer import Tokenizer

HOSTILE = "<b>x</b></script><script>alert(1)</script>"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    corpus = {"fingerprint": "f00d", "train_bytes": 1000, "train_tokens": 500}
    run = new_run(tmp_path / "fox", new_model(n_layer=1), record={"corpus": corpus})
    for step in range(1, 41):
        run.log({"step": step, "loss": 2 + 3 / step, "learning_rate": 0.01, "tokens_per_second": 5000.0})
    return run


@pytest.fixture
def server(run: Run, monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveServer]:
    monkeypatch.setattr(live_run, "_SECONDS", 0.0)
    monkeypatch.setattr(live_server, "_SECONDS", 0.02)
    server = LiveServer()
    server.start(LiveRun(run, Tokenizer.named("bytes")))
    yield server
    server.close()
    assert server.failure is None


def report(server: LiveServer, step: int) -> None:
    assert server.run is not None
    server.run.report(
        LiveStatus(step=step, total_steps=80, progress=step / 80, seconds=130.0, seconds_left=125.0, loss=2.5,
                   learning_rate=0.01)
    )  # fmt: skip


def wait_for(browser: Any, condition: str) -> None:
    for _ in range(500):
        if browser.ask(condition):
            return
        time.sleep(0.02)
    raise AssertionError(f"never true: {condition}\n{browser.ask('document.body.innerText')}")


def test_the_page_follows_the_run_and_becomes_its_report(browser: Any, server: LiveServer, run: Run) -> None:
    report(server, 40)
    browser.visit(server.address)
    browser.ask("window.isTheSamePage = true")
    panel = "document.querySelector('.live').innerText"
    wait_for(browser, f"{panel}.includes('50%')")
    shown = browser.ask(panel)
    for text in ("2 min 5 s left", "40 of 80", "5,000 tokens per second", "2.500 nats per token", "2 min 10 s"):
        assert text in shown
    assert server.run is not None
    server.run.notice(f"skipped step 3 {HOSTILE}")
    wait_for(browser, f"{panel}.includes({HOSTILE!r})")
    for step in range(41, 44):
        run.log({"step": step, "loss": 2.0, "learning_rate": 0.01, "tokens_per_second": 5000.0})
    run.log({"step": 43, "validation_loss": 2.0, "bits_per_byte": 2.5})
    run.log({"step": 43, "prompt": "It was", "sample": HOSTILE})
    wait_for(browser, "document.querySelector('blockquote')?.textContent.includes('alert(1)')")
    assert browser.ask("document.querySelector('.figure').textContent") == "2.50 bits per byte"
    wait_for(browser, "document.querySelectorAll('svg.chart circle.second').length > 0")  # the evaluation
    run.update(result=Result(step=80, reason="length", bits_per_byte=2.25, seconds=250.0))
    server.run.finish(run_data(run.directory))
    wait_for(browser, "document.querySelector('header').innerText.includes('finished after 80 steps')")
    assert browser.ask("document.querySelector('.figure').textContent") == "2.25 bits per byte"
    assert browser.ask("document.querySelector('.live')") is None
    assert browser.ask("window.isTheSamePage") is True
    assert browser.ask("document.querySelectorAll('blockquote b').length") == 1  # the prompt; no tag of the sample
    assert browser.errors == []


def test_what_the_user_has_chosen_stays_when_the_page_changes(browser: Any, server: LiveServer, run: Run) -> None:
    for step in (10, 20, 30):
        run.log({"step": step, "prompt": "", "sample": f"sample {step}"})
    browser.visit(server.address)
    browser.ask("document.querySelector('input[type=range]').focus()")
    browser.press("ArrowLeft")
    browser.ask("document.querySelector('svg.chart').dispatchEvent(new KeyboardEvent('keydown', {key: 'Home'}))")
    run.log({"step": 40, "prompt": "", "sample": "sample 40"})
    run.log({"step": 41, "loss": 2.0, "learning_rate": 0.01, "tokens_per_second": 5000.0})
    wait_for(browser, "document.querySelector('blockquote').textContent.includes('sample 40')")
    assert browser.ask("document.querySelector('.sample').textContent") == "sample 20"
    assert browser.ask("document.activeElement.type") == "range"
    wait_for(browser, "document.querySelector('.readout').textContent.startsWith('step 1training')")
    assert browser.errors == []


def test_the_page_says_when_the_run_no_longer_answers(browser: Any, server: LiveServer) -> None:
    browser.visit(server.address)
    server.close()
    wait_for(browser, "document.querySelector('.connection').textContent.includes('does not answer')")


def test_an_open_page_shows_the_run_that_begins_at_its_address(browser: Any, run: Run, tmp_path: Path) -> None:
    first = LiveServer()
    first.start(LiveRun(run, Tokenizer.named("bytes")))
    browser.visit(first.address)
    port = int(first.address.rstrip("/").rpartition(":")[2])
    first.close()
    second = LiveServer(port)
    other = new_run(tmp_path / "other", new_model(n_layer=1))
    second.start(LiveRun(other, Tokenizer.named("bytes")))
    browser.wait_for_reload()
    wait_for(browser, "document.querySelector('h1')?.textContent === 'other'")
    second.close()


@pytest.mark.parametrize("width", [390, 1280])
def test_the_live_page_fits_the_window(browser: Any, server: LiveServer, width: int) -> None:
    report(server, 40)
    assert server.run is not None
    server.run.notice("averylongnotice" * 30)
    browser.visit(server.address, width=width)
    wait_for(browser, "document.querySelector('.notices') !== null")
    assert browser.ask("document.documentElement.scrollWidth") <= width
