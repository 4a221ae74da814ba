"""The data of the report page of a run that is training: it follows the run's log, and says what has changed."""

import math
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from minigpt.reports.page_data import Line, LogLines, page_data, passage_data
from minigpt.reports.teacher_data import teacher_data, teacher_parts
from minigpt.storage.log_follower import LogFollower
from minigpt.storage.run import Run
from minigpt.tokenizer.tokenizer import Tokenizer

_MOST_STEPS = 600  # that are kept for the curves: more would take time from training
_MOST_NOTICES = 50
_RECENT = 20  # steps whose mean is the present speed
_SECONDS = 1.0  # between two readings of the log, however many browsers ask


class ThinnedLines:
    """At most `most` evenly spread lines of those that were added, and the last one."""

    def __init__(self, most: int) -> None:
        self._most, self._stride, self._count = most, 1, 0
        self._kept: list[Line] = []
        self._last: Line | None = None

    def add(self, line: Line) -> None:
        if self._count % self._stride == 0:
            self._kept.append(line)
            if len(self._kept) > self._most:
                self._kept, self._stride = self._kept[::2], 2 * self._stride
        self._count += 1
        self._last = line

    def lines(self) -> list[Line]:
        """The lines that are kept, in order."""
        if self._last is None or self._kept[-1] is self._last:
            return list(self._kept)
        return [*self._kept, self._last]


@dataclass(frozen=True, kw_only=True)
class LiveStatus:
    """How far a run has come.

    Units: `progress` from 0 to 1, `seconds` and `seconds_left` in seconds, `loss` in nats per token. `total_steps` is
    None for a budget in minutes.
    """

    step: int
    total_steps: int | None
    progress: float
    seconds: float
    seconds_left: float
    loss: float
    learning_rate: float


@dataclass(frozen=True)
class Changes:
    """The parts of the page's data that have changed up to a revision. `is_final` says that no more will change."""

    revision: int
    parts: Mapping[str, Any]
    is_final: bool


class LiveRun:
    """The data of a run's page while it trains. The training thread reports; the threads of a server read.

    Nothing is computed unless somebody reads, and then at most once a second. `identity` tells this run from
    another one that a page may find at the same address later.
    """

    def __init__(self, run: Run, tokenizer: Tokenizer) -> None:
        self._run, self._tokenizer, self._follower = run, tokenizer, LogFollower(lambda: run.log_path)
        self.identity = secrets.token_hex(8)
        self._lock = threading.Lock()  # of everything below but the status and the notices
        self._status: LiveStatus | None = None
        self._notices: list[str] = []
        self._clear()
        self._teacher = teacher_data(run, [])
        self._parts: dict[str, Any] = {}
        self._revisions: dict[str, int] = {}  # at which each part last changed
        self._revision = 0
        self._read_at = -_SECONDS
        self._final = threading.Event()

    def report(self, status: LiveStatus) -> None:
        """Sets the status that readers see; costs the training thread nothing but this assignment."""
        self._status = status

    def notice(self, text: str) -> None:
        """Adds a notice; only the last ones are kept."""
        self._notices = [*self._notices[-_MOST_NOTICES + 1 :], text]

    def finish(self, data: Mapping[str, Any]) -> None:
        """Ends the run with the data of its report; readers learn it at once."""
        with self._lock:
            self._set({**data, "live": None})
            self._final.set()

    def wait(self, seconds: float) -> bool:
        """Waits that long, or until the run has ended; returns whether it has."""
        return self._final.wait(seconds)

    def changes(self, since: int = -1) -> Changes:
        """What has changed after a revision; everything after -1, or after a revision that this run never had."""
        with self._lock:
            if not self._final.is_set() and time.monotonic() - self._read_at >= _SECONDS:
                self._read_at = time.monotonic()
                self._refresh()
            known = since if since <= self._revision else -1
            parts = {name: self._parts[name] for name, revision in self._revisions.items() if revision > known}
            return Changes(self._revision, parts, self._final.is_set())

    def _clear(self) -> None:
        self._steps = ThinnedLines(_MOST_STEPS)
        self._recent: list[Line] = []
        self._evaluations: list[Line] = []
        self._samples: list[Line] = []

    def _refresh(self) -> None:
        """Reads the new lines of the log and makes the page's data again if there are any."""
        lines, restarted = self._follower.read()
        if restarted:
            self._clear()
        added = LogLines.of(lines)
        for line in added.steps:
            self._steps.add(line)
        self._recent = [*self._recent, *added.steps][-_RECENT:]
        self._evaluations += added.evaluations
        self._samples += added.samples
        data: dict[str, Any] = {"live": self._live()}
        if lines or restarted or not self._parts:
            kept = LogLines(self._steps.lines(), self._evaluations, self._samples)
            data |= page_data(self._run.record, self._run.directory.resolve().name, kept, is_training=True)
            data |= teacher_parts(self._teacher, data["tables"])
        if added.evaluations or restarted or not self._parts:
            data["passage"] = passage_data(self._evaluations, self._tokenizer)
            corpus = self._run.record.corpus
            waits = corpus is None or corpus.validation_bytes != 0
            data["whyNoPassage"] = "the first evaluation has not ended" if waits else "no text is held out"
        self._set(data)

    def _set(self, data: Mapping[str, Any]) -> None:
        changed = [name for name, value in data.items() if name not in self._parts or self._parts[name] != value]
        if changed:
            self._revision += 1
        for name in changed:
            self._parts[name], self._revisions[name] = data[name], self._revision

    def _live(self) -> dict[str, Any]:
        status = None if self._status is None else vars(self._status)
        if status is not None and not math.isfinite(status["loss"]):
            status = status | {"loss": None}
        seconds = sum(1 / line["tokens_per_second"] for line in self._recent if line.get("tokens_per_second"))
        return {
            "status": status,
            "tokensPerSecond": round(len(self._recent) / seconds) if seconds else None,
            "notices": self._notices,
        }
