"""The page that `minigpt train --watch` serves: passes the run's events on to it."""

from types import TracebackType
from typing import TYPE_CHECKING, Self

from minigpt.cli.render.terminal import note
from minigpt.tokenizer.display import one_line

if TYPE_CHECKING:
    from minigpt.jobs.events import Event
    from minigpt.storage.run import Run
    from minigpt.tokenizer.tokenizer import Tokenizer


class Watch:
    """Serves a run's page on this machine, from `start` until the end of the `with` block."""

    def __init__(self, port: int | None) -> None:
        """Takes a port, so that a wrong one is an error before anything slow begins.

        Raises: ConfigError as `LiveServer`.
        """
        from minigpt.reports.live_server import LiveServer

        self._server = LiveServer(port)
        self._run: Run | None = None
        self._total_steps: int | None = None
        self._failed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.finish()
        finally:
            self._server.close()

    def start(self, run: "Run", tokenizer: "Tokenizer", total_steps: int | None) -> None:
        """Begins to serve the page of a run, and says where; a second run takes the place of the first."""
        from minigpt.reports.live_run import LiveRun

        is_first, self._run, self._total_steps = self._run is None, run, total_steps
        self._server.start(LiveRun(run, tokenizer))
        if is_first:
            note(f"watch it at {self._server.address}")

    def show(self, event: "Event") -> None:
        """Passes an event on to the page. An error of the page is reported once; training continues."""
        from minigpt.jobs.events import SpeedChange, TeacherTrained
        from minigpt.reports.live_run import LiveStatus
        from minigpt.training.events import Notice, Step

        live = self._server.run
        if live is None:
            return
        if isinstance(event, Step):
            status = LiveStatus(
                step=event.step,
                total_steps=self._total_steps,
                progress=event.progress,
                seconds=event.seconds,
                seconds_left=event.seconds_left,
                loss=event.loss,
                learning_rate=event.learning_rate,
            )
            live.report(status)
        elif isinstance(event, Notice | SpeedChange | TeacherTrained):
            live.notice(one_line(event.text))
        failure = self._server.failure
        if failure is not None and not self._failed:
            self._failed = True
            note(f"the page to watch failed ({type(failure).__name__}: {failure}); training continues")

    def finish(self) -> None:
        """Turns the page into the report of the run in its present state; nothing changes after that."""
        from minigpt.reports.run_report import run_data

        run, live, self._run = self._run, self._server.run, None
        if run is None or live is None:
            return
        try:
            live.finish(run_data(run.directory))
        except Exception as error:  # of any kind: the run is saved, and its page must not fail it
            note(f"the page to watch does not show the end: {type(error).__name__}: {error}")
