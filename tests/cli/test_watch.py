"""`minigpt train --watch`: the page is served while the run trains, ends with it, and changes nothing about it."""

import json
import re
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from click.testing import Result

from minigpt.errors import TrainingError
from minigpt.reports import live_run, live_server
from minigpt.storage.tensors import TensorFile

Run = Callable[..., Result]


class Browser(threading.Thread):
    """Opens the page as soon as its address is said, and collects the events of its stream."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.address: str | None = None
        self.page = ""
        self.events: list[dict[str, Any]] = []
        self.follows = threading.Event()

    def note(self, text: object) -> None:
        """Takes the place of the command's `note`."""
        found = re.search(r"watch it at (http://\S+/)$", str(text))
        if found:
            assert self.address is None  # said once
            self.address = found[1]
            self.start()
            assert self.follows.wait(30)  # so that even a run of no time has a page that follows it

    def run(self) -> None:
        assert self.address is not None
        with urlopen(self.address, timeout=30) as page:
            self.page = page.read().decode()
        with urlopen(self.address + "events", timeout=30) as stream:
            for line in stream:
                if line.startswith(b"data: "):
                    self.events.append(json.loads(line.removeprefix(b"data: ")))
                    self.follows.set()


@pytest.fixture
def browser(monkeypatch: pytest.MonkeyPatch) -> Browser:
    browser = Browser()
    monkeypatch.setattr("minigpt.cli.watch.note", browser.note)
    monkeypatch.setattr(live_run, "_SECONDS", 0.0)
    monkeypatch.setattr(live_server, "_SECONDS", 0.01)
    return browser


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def is_closed(address: str) -> bool:
    host, _, port = address.removeprefix("http://").rstrip("/").partition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) != 0


def test_the_page_follows_the_run_and_ends_as_its_report(
    run: Run, here: Path, tiny: list[str], browser: Browser
) -> None:
    result = run("train", "fox.txt", *tiny, "--watch", "--watch-port", free_port())
    assert result.exit_code == 0, result.stderr
    browser.join(30)
    assert browser.address is not None
    assert "<title>fox</title>" in browser.page
    last = browser.events[-1]
    assert last["isFinal"]
    state: dict[str, Any] = {}
    for event in browser.events:
        state |= event["parts"]
    written = (here / "checkpoints/fox/report.html").read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', written, re.DOTALL)
    assert found is not None
    assert state == {**json.loads(found[1])["runs"][0], "live": None}
    assert "events" not in found[1]  # the file connects to nothing
    assert "connect-src" not in written
    assert is_closed(browser.address)


def test_watching_changes_nothing_about_the_run(run: Run, here: Path, tiny: list[str], browser: Browser) -> None:
    options = [*tiny, "--no-report"]
    assert run("train", "fox.txt", *options, "--name", "alone").exit_code == 0
    assert run("train", "fox.txt", *options, "--name", "watched", "--watch", "--watch-port", free_port()).exit_code == 0
    browser.join(30)
    assert browser.events[-1]["isFinal"]
    files = [here / "checkpoints" / name / "model.safetensors" for name in ("alone", "watched")]
    with TensorFile(files[0]) as one, TensorFile(files[1]) as other:
        assert one.metadata == other.metadata
    assert files[0].read_bytes() == files[1].read_bytes()
    times = {"seconds", "tokens_per_second"}
    logs = [
        [
            {key: value for key, value in json.loads(line).items() if key not in times}
            for line in file.read_text(encoding="utf-8").splitlines()
        ]
        for file in (path.parent / "log.jsonl" for path in files)
    ]
    assert logs[0] == logs[1]
    assert not (here / "checkpoints/watched/report.html").exists()


def test_a_run_that_is_resumed_can_be_watched(run: Run, here: Path, tiny: list[str], browser: Browser) -> None:
    assert run("train", "fox.txt", *tiny, "--no-report").exit_code == 0
    resumed = run("train", "--resume", "--steps", "12", "--watch-port", free_port())  # the port alone is enough
    assert resumed.exit_code == 0, resumed.stderr
    browser.join(30)
    state: dict[str, Any] = {}
    for event in browser.events:
        state |= event["parts"]
    assert state["training"]["step"] == list(range(1, 13))
    assert browser.events[0]["parts"]["live"] is not None


def test_a_port_that_is_taken_is_an_error_before_anything_begins(run: Run, here: Path, tiny: list[str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        result = run("train", "fox.txt", *tiny, "--watch-port", str(port))
    assert result.exit_code == 1
    assert result.stderr == (
        f"minigpt: watch_port ({port}) is used by another program; give another one, or omit it for a free one\n"
    )
    assert not (here / "checkpoints").exists()


def test_a_page_that_fails_does_not_fail_the_run(
    run: Run, here: Path, tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("no luck")

    monkeypatch.setattr("minigpt.reports.run_report.run_data", fail)
    result = run("train", "fox.txt", *tiny, "--no-report", "--watch-port", free_port())
    assert result.exit_code == 0
    assert "the page to watch does not show the end: ZeroDivisionError: no luck" in result.stderr


def test_the_page_ends_with_a_run_that_fails(
    run: Run, here: Path, tiny: list[str], browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverge(*_: object, **__: object) -> None:
        raise TrainingError("training diverged")

    monkeypatch.setattr("minigpt.training.trainer.Trainer._take_step", diverge)
    result = run("train", "fox.txt", *tiny, "--watch-port", free_port())
    assert result.exit_code == 1
    browser.join(30)
    assert browser.events[-1]["isFinal"]
    assert browser.address is not None
    assert is_closed(browser.address)
