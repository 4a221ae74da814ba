"""Loggers for a run's events: TensorBoard and Weights & Biases, both optional.

An error in a logger ends that logger and is reported in one sentence; training continues.
"""

import importlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from html import escape
from typing import Any

from minigpt.cli.render.terminal import note
from minigpt.errors import ConfigError, first_line_of
from minigpt.loggers.settings import LoggerSettings
from minigpt.removal.remove_run import find_removable, remove_run
from minigpt.runs.events import Event, Planned, Remark, StageEnded, Started
from minigpt.runs.job import Job, Sink
from minigpt.runs.sink_settings import SinkSettings
from minigpt.storage.run import Run
from minigpt.training.events import Activity, Evaluation, Finished, Notice, Sample, Saved, Step
from minigpt.training.events import Event as TrainEvent


@contextmanager
def open_loggers(
    names: Iterable[str], run: Run, report: Callable[[str], None], title: str, *, required: bool = True
) -> Iterator[Callable[[TrainEvent], None]]:
    """Yields a function that writes an event to each of the loggers named, `tensorboard` and `wandb`.

    `report` is called with a sentence on each logger that fails. `title` is the run's name in Weights & Biases.
    Raises: ConfigError if one cannot start. If none is `required`, that is reported too.
    """
    names = dict.fromkeys(names)
    loggers: dict[str, _Logger] = {}

    def attempt(act: Callable[[_Logger], None]) -> None:
        for name, logger in list(loggers.items()):
            try:
                act(logger)
            except Exception as error:  # the packages document no exceptions
                del loggers[name]
                report(f"{name} failed ({first_line_of(error)}); training continues without it")

    try:
        for name in names:
            try:
                loggers[name] = _LOGGERS[name](run, title)
            except Exception as error:  # the packages document no exceptions
                why = f"--log {name} cannot start ({first_line_of(error)}); {_LOGGERS[name].start_hint}"
                if required:
                    raise ConfigError(why) from error
                report(f"{why}; training continues without it")
        yield lambda event: attempt(lambda logger: logger.write(event))
    finally:
        attempt(lambda logger: logger.close())


class _Logger:
    """Writes events to another program. Steps arrive in order, except when a run rolls back or is resumed."""

    start_hint = "reinstall it"  # what to do if it cannot start

    def __init__(self, run: Run, title: str) -> None:
        self.run, self.title = run, title
        self._relocations = run.relocations
        self._next_step: int | None = None

    def write(self, event: TrainEvent) -> None:
        """Writes an event, except while the run's folder is lost: the next save continues in a new one."""
        if isinstance(event, Notice) or not self.run.is_in_place:
            return
        if self._relocations != self.run.relocations:
            self._relocations = self.run.relocations
            with suppress(Exception):  # what the folder has lost may be among the files that closing writes
                self.close()
            self.open_again()
            self._next_step = None
        if isinstance(event, Saved):
            if event.what == "last":
                self.flush()
            return
        first = event.step if isinstance(event, Step) else event.step + 1  # other events follow the step they name
        if self._next_step is None or first < self._next_step:
            self.restart_at(first)
        self._next_step = event.step + 1
        if isinstance(event, Sample):
            self.log_sample(event.step, event.prompt + event.text)
        else:
            self.log_metrics(event.step, _metrics(event))

    def open_again(self) -> None:
        """Continues in the run's new folder, before the next event; the logger was closed."""

    def restart_at(self, step: int) -> None:
        """Declares that this step comes next; entries already written for it or for later steps are void."""

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        raise NotImplementedError

    def log_sample(self, step: int, text: str) -> None:
        raise NotImplementedError

    def flush(self) -> None:
        """Writes to disk, because a run that is resumed from here does not log these events again."""

    def close(self) -> None:
        raise NotImplementedError


def _metrics(event: Step | Evaluation | Finished) -> dict[str, float]:
    """An event's metrics by the names of their charts; a prefix before a slash groups charts."""
    if isinstance(event, Step):
        names = ("loss", "learning_rate", "gradient_norm", "tokens_per_second")[0 if event.is_scored else 1 :]
        return {f"train/{name}": getattr(event, name) for name in names}
    if isinstance(event, Evaluation):
        return {"validation/loss": event.validation_loss, "validation/bits_per_byte": event.bits_per_byte}
    best = {"best/validation_loss": event.validation_loss, "best/bits_per_byte": event.bits_per_byte}
    return {name: value for name, value in best.items() if value is not None}


class _TensorBoardLogger(_Logger):
    """Writes event files into the run's folder, which `tensorboard --logdir checkpoints` draws.

    A run that is resumed or rolls back opens another file, which hides the later steps of the earlier files.
    """

    def __init__(self, run: Run, title: str) -> None:
        from torch.utils.tensorboard import SummaryWriter

        super().__init__(run, title)
        self._open: Callable[..., Any] = SummaryWriter
        self._writer: Any = None

    def open_again(self) -> None:
        self._writer = None

    def restart_at(self, step: int) -> None:
        self.close()
        self._writer = self._open(str(self.run.subfolder("tensorboard")), purge_step=step)

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def log_sample(self, step: int, text: str) -> None:
        indented = "\n".join(f"    {line}" for line in text.splitlines())  # Markdown shows it verbatim
        self._writer.add_text("sample", indented, step)

    def flush(self) -> None:
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class _WandbLogger(_Logger):
    """Writes to a Weights & Biases run with this run's name and record; its environment variables apply.

    Weights & Biases ignores a step that it already has, so a run that rolls back appears again at its first new step.
    """

    start_hint = "log in by `wandb login`, or set WANDB_MODE=offline"

    def __init__(self, run: Run, title: str) -> None:
        super().__init__(run, title)
        self._wandb = importlib.import_module("wandb")
        self._id = re.sub(r"[^\w-]+", "-", f"{title}-{run.record.started or ''}")[:128]
        self.open_again()

    def open_again(self) -> None:
        self._run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", "minigpt"),
            name=self.title,
            id=self._id,
            resume="allow",
            config=self.run.record.to_dict(),
            dir=str(self.run.subfolder("wandb").parent),
        )

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def log_sample(self, step: int, text: str) -> None:
        self._run.log({"sample": self._wandb.Html(f"<pre>{escape(text)}</pre>")}, step=step)

    def close(self) -> None:
        self._run.finish()


_LOGGERS: dict[str, type[_Logger]] = {"tensorboard": _TensorBoardLogger, "wandb": _WandbLogger}


class LoggerSink(Sink):
    """Gives the events of a job to loggers, which are opened for its teacher, if it trains one, and for its model."""

    def __init__(self, job: Job, names: Sequence[str]) -> None:
        self.job, self.names = job, names
        self._opened = ExitStack()
        self._log: Callable[[TrainEvent], None] | None = None

    def receive(self, event: Event) -> Iterable[Event]:
        if isinstance(event, Started):
            self._open(event)
        elif self._log is not None and isinstance(event, StageEnded):
            self._log(event.finished)
        elif self._log is not None and not isinstance(event, Remark | Activity | Planned):
            self._log(event)
        return ()

    def close(self, finished: Finished | None) -> Iterable[str]:  # noqa: ARG002
        self._opened.close()
        return ()

    def _open(self, started: Started) -> None:
        job, is_first = self.job, self._log is None
        run = Run.open(started.directory) if started.is_teacher else job.run
        title = job.run.directory.name + ("-teacher" if started.is_teacher else "")
        self._opened.close()
        loggers = open_loggers(self.names, run, note, title, required=is_first)
        try:
            self._log = self._opened.enter_context(loggers)
        except ConfigError:
            if not job.resume:
                _discard_run(job.run)
            raise


def _discard_run(run: Run) -> None:
    """Removes the folder of a run that cannot begin to train; `minigpt generate` would take it for the newest."""
    run.unlock()
    remove_run(find_removable(run.directory.name, run.directory.parent))


def logger_sink(job: Job, settings: SinkSettings) -> LoggerSink | None:
    """The sink of the loggers that are asked for."""
    names = LoggerSettings.of(settings).log
    return LoggerSink(job, names) if names else None
