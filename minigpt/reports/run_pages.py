"""The loss curve and the report of a run: the report while it trains, both when it has ended."""

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from minigpt.baselines.baselines import recorded_baselines
from minigpt.cli.render.annotations import annotations_of
from minigpt.cli.render.terminal import note
from minigpt.errors import MissingPackageError
from minigpt.reports import REPORT, loss_curve
from minigpt.reports.page_data import rounded
from minigpt.reports.recorded_steps import record_steps
from minigpt.reports.run_report import write_report
from minigpt.reports.settings import ReportSettings
from minigpt.runs.events import Event, Remark, Started
from minigpt.runs.job import Job, Sink
from minigpt.runs.sink_settings import SinkSettings
from minigpt.storage.run import Run
from minigpt.tokenizer.display import one_line
from minigpt.training.events import Evaluation, Finished, Notice, Sample, Step

_SHARE = 0.01  # of the time of the run that writing the page may take
_MOST_NOTICES = 50


class ReportSink(Sink):
    """Rewrites the report of a job's run at each evaluation, as a page that reloads, and both pages at the end.

    The proposals at the end of the `job` are recorded for it. With `watch` the page is opened in a browser, once. An
    error of the page is a notice, once; the run does not fail.
    """

    def __init__(self, run: Run, *, report: bool = True, watch: bool = False, job: Job | None = None) -> None:
        self._run, self._report, self._watch, self._job = run, report, watch, job
        self._started: Started | None = None
        self._path = run.directory / REPORT
        self._page: RunningReport | None = None
        self._failed = False

    def receive(self, event: Event) -> Iterable[Event]:
        if not self._report:
            return ()
        if isinstance(event, Started):
            self._started = event
            run = Run.open(event.directory) if event.is_teacher else self._run
            self._page = RunningReport(run, self._path, event.total_steps)
            notices = self._attempt(self._page.write)
            if self._watch and not self._failed:
                self._watch = False
                _open_page(self._path)
            return notices
        if self._page is None:
            return ()
        self._page.observe(event)
        return self._attempt(self._page.write) if isinstance(event, Evaluation | Sample) else ()

    def close(self, finished: Finished | None) -> Iterable[str]:
        if finished is not None:
            return (*self._attempt_to_record(), *write_pages(self._run, report=self._report))
        if self._page is not None:
            self._attempt(self._page.end)
        return ()

    def _attempt_to_record(self) -> Iterable[str]:
        """Keeps what the end of the run proposes for the report, also for one that is written later."""
        if not self._report or self._job is None or self._started is None:
            return
        try:
            annotations = annotations_of(self._started)
            record_steps(self._run, [step for each in annotations for step in each.next_steps(self._job)])
        except Exception as error:  # of any kind: the run is trained and saved
            yield f"the report has no advice: {type(error).__name__}: {error}"

    def _attempt(self, write: Callable[[], object]) -> list[Event]:
        try:
            write()
        except Exception as error:  # of any kind: what is trained is saved without the page
            if not self._failed:
                self._failed = True
                return [Notice(0, f"no report is written during training: {type(error).__name__}: {error}")]
        return []


def report_sink(job: Job, settings: SinkSettings) -> ReportSink:
    """The sink that draws the loss curve of a job's run and, unless the user does not want it, writes its report."""
    given = ReportSettings.of(settings)
    return ReportSink(job.run, report=not given.no_report, watch=given.watch, job=job)


def _open_page(path: Path) -> None:
    """Says where a page is, and opens it in a browser if this machine has one."""
    import webbrowser

    note(f"watch it: {path}")
    webbrowser.open(path.resolve().as_uri())


def write_pages(run: Run, *, report: bool = True) -> Iterable[str]:
    """Draws the loss curve and writes the report of a run that has ended; yields a sentence on each.

    A run that is trained and saved does not fail because a page about it cannot be made.
    """
    path = run.directory / "loss.png"
    try:
        known = {baseline.label: baseline.bits_per_byte for baseline in recorded_baselines(run.record)}
        loss_curve.draw_loss_curve(run.read_log(), path, known)
        yield f"loss curve: {path}"
    except MissingPackageError as error:
        yield f"no loss curve was drawn: {error}"
    except Exception as error:  # of any kind: training has ended and is saved
        yield f"no loss curve was drawn: {type(error).__name__}: {error}"
    if not report:
        return
    path = run.directory / REPORT
    try:
        write_report([run.directory], path)
        yield f"report: {path}"
    except Exception as error:
        yield f"no report was written: {type(error).__name__}: {error}"


class RunningReport:
    """Writes the page of a run at `path`, with how far the run has come. `total_steps` is None for a budget in minutes.

    It is written atomically and takes at most a hundredth of the time: a long log is read again for each page.
    """

    def __init__(self, run: Run, path: Path, total_steps: int | None) -> None:
        self._run, self._path, self._total_steps = run, path, total_steps
        self._notices: list[str] = []
        self._step: Step | None = None
        self._written = self._cost = 0.0

    def observe(self, event: Event) -> None:
        """Notes how far the run has come, and what the next page says."""
        if isinstance(event, Step):
            self._step = event
        elif isinstance(event, Notice | Remark):
            self._notices = [*self._notices[-_MOST_NOTICES + 1 :], one_line(event.text)]

    def write(self) -> None:
        """Writes the page, unless the last one took more than a hundredth of the time since."""
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
        """Writes the page of a run that was left before its end, which no longer reloads itself."""
        if self._written:
            write_report([self._run.directory], self._path, problems=[])
