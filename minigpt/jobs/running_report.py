"""Keeps the report of a run up to date while the run trains; the page reloads itself until the run has ended."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from minigpt.reports.page_data import rounded
from minigpt.reports.run_report import write_report
from minigpt.storage.run import Run
from minigpt.tokenizer.display import one_line
from minigpt.training.events import Step

_SHARE = 0.01  # of the time of the run that writing the page may take
_MOST_NOTICES = 50


class RunningReport:
    """Writes the page of a run at `path`, with how far the run has come. `total_steps` is None for a budget in minutes.

    It is written atomically and takes at most a hundredth of the time: a long log is read again for each page.
    """

    def __init__(self, run: Run, path: Path, total_steps: int | None) -> None:
        self._run, self._path, self._total_steps = run, path, total_steps
        self._notices: list[str] = []
        self._step: Step | None = None
        self._written = self._cost = 0.0

    def step(self, step: Step) -> None:
        """Notes how far the run has come."""
        self._step = step

    def notice(self, text: str) -> None:
        """Notes a notice for the next page, which shows the last of them."""
        self._notices = [*self._notices[-_MOST_NOTICES + 1 :], one_line(text)]

    def write(self) -> None:
        """Writes the page, unless the last one took more than a hundredth of the time since.

        Raises: CheckpointError if it cannot be written.
        """
        began = time.time()
        if self._cost > _SHARE * (began - self._written):
            return
        status: dict[str, Any] | None = None
        if self._step is not None:
            status = {name: rounded(value) for name, value in asdict(self._step).items()}
            status["total_steps"] = self._total_steps
        interval = began - self._written if self._written else None
        live = {"status": status, "notices": self._notices, "written": began, "interval": interval}
        write_report([self._run.directory], self._path, problems=[], live=live)
        self._written, self._cost = began, time.time() - began

    def end(self) -> None:
        """Writes the page of a run that was left before its end, which no longer reloads itself.

        Raises: CheckpointError if it cannot be written.
        """
        if self._written:
            write_report([self._run.directory], self._path, problems=[])
