"""`minigpt.plan()` and `minigpt.fit()`: what `minigpt train` does, for Python users."""

import os
import signal
import threading
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from minigpt.config import TrainConfig
from minigpt.errors import ConfigError
from minigpt.run_options import Request, RunOptions
from minigpt.runs.events import Event
from minigpt.runs.find_run import find_run
from minigpt.runs.job import run_job, sinks_of
from minigpt.runs.plan import Plan
from minigpt.runs.start_run import plan_run, prepare, start_run
from minigpt.storage.run import read_record
from minigpt.threads import respect_cpu_quota, sharing_cores
from minigpt.training.clock import Control

Sources = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
"""Text files, folders or globs; `-` is standard input."""
Result = TypeVar("Result")
Item = TypeVar("Item")


def plan(
    sources: Sources,
    *,
    name: str | None = None,
    checkpoints: str | os.PathLike[str] = "checkpoints",
    base: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Plan:
    """Plans a run: measures this machine and chooses every setting that is not given. Writes no run.

    `sources` are text files, folders or globs. `settings` are `preset`, `tokenizer` and the settings of `minigpt train`
    (`minutes`, `steps`, `n_layer`, `learning_rate`, ...); `base` is a model to fine-tune, by name or path.
    Limits torch's threads to the container's CPU quota, unless OMP_NUM_THREADS is set.
    Raises: ConfigError for settings that are out of bounds, cannot be combined or do not fit into memory; DataError and
    MissingPackageError if the text cannot be read; TokenizerError; CheckpointError if `base` cannot be loaded;
    DeviceError.

    >>> plan = minigpt.plan("corpus.txt", minutes=2)
    >>> print(plan)
    checkpoints/corpus
    text          ...
    >>> plan.model.n_layer, plan.training.minutes
    (4, 2)
    """
    request = _request(sources, name, checkpoints, base, settings)
    processes = request.options.training.n_processes or 1
    respect_cpu_quota()
    with sharing_cores(processes):
        return _result(plan_run(request, processes, processes))


def fit(
    sources: Sources | Plan = (),
    *,
    name: str | None = None,
    checkpoints: str | os.PathLike[str] | None = None,
    base: str | os.PathLike[str] | None = None,
    resume: bool = False,
    allow_change: bool = False,
    report: bool = True,
    control: Control | None = None,
    **settings: Any,
) -> Iterator[Event]:
    """Trains a run exactly as `minigpt train` does, and yields what happens: plans it, trains, writes its report.

    `sources` are text files, folders or globs, or a plan of `minigpt.plan()`. `settings` are those of `plan()`, and
    `checkpoints` is by default the folder "checkpoints". With `resume`, the run of that name continues, or else the
    newest run of that text; it may have begun in Python or with `minigpt train`, which resumes both kinds too.
    `allow_change` lets it change the learning rate, the batch, the seed or the text. Functions among the `settings` are
    given to `train()`, such as `loss_fn`. Leaving the loop over the events
    stops training and saves the run; so do `control.stop` and Ctrl-C, which raises KeyboardInterrupt after the save.
    Without `report`, no report.html is written.

    Limits torch's threads as `plan()` does. Like `train()`, it seeds torch's global generator, allows TF32 on CUDA, and
    on a CPU makes glibc's allocator keep freed memory.
    Raises: what `plan()` raises; ConfigError for a change that needs `allow_change`; TrainingError if training diverges
    repeatedly or memory runs out; CheckpointError if the run to resume is damaged or in use, or if the run cannot be
    written.

    >>> for event in minigpt.fit("corpus.txt", steps=20):
    ...     if isinstance(event, minigpt.Evaluation):
    ...         print(event.step, event.validation_loss)
    0 ...
    >>> finished = minigpt.show(minigpt.fit("corpus.txt", steps=30, resume=True))
    >>> finished.step
    30
    """
    given = {name: settings.pop(name) for name in list(settings) if callable(settings[name])}
    if isinstance(sources, Plan):
        if name or checkpoints is not None or base or resume or allow_change or settings:
            raise ConfigError("a plan has its settings: give them to plan(), or the texts to fit()")
        _refuse_devices(sources.training)
        return _fit(sources.request, sources, given, resume=False, report=report, control=control)
    checkpoints = "checkpoints" if checkpoints is None else checkpoints
    request = _request(sources, name, checkpoints, base, settings, allow_change=allow_change)
    _refuse_devices(request.options.training)
    return _fit(request, None, given, resume=resume, report=report, control=control)


def _fit(
    request: Request,
    planned: Plan | None,
    given: dict[str, Any],
    *,
    resume: bool,
    report: bool,
    control: Control | None,
) -> Iterator[Event]:
    respect_cpu_quota()
    if resume and request.options.training.n_processes is None and (directory := find_run(request)) is not None:
        _refuse_devices(read_record(directory).training)
    job = yield from (start_run(planned, keeps_plan=True) if planned else prepare(request, resume=resume))
    job = replace(job, options={**job.options, **given})
    control = control or Control()
    with closing(run_job(job, sinks_of(job, no_report=not report), control=control)) as events:
        yield from _interruptible(events, control)  # `closing`, so that a save that fails on leaving raises


def _interruptible(items: Iterator[Item], control: Control) -> Iterator[Item]:
    """The items; a Ctrl-C while one is computed requests a stop, and raises KeyboardInterrupt after the last item."""
    interrupted = False
    end = object()
    while True:
        with _interrupt_as_request(control) as requests:
            item = next(items, end)
        interrupted = interrupted or bool(requests)
        if item is end:
            break
        yield item  # type: ignore[misc]
    if interrupted:
        raise KeyboardInterrupt


@contextmanager
def _interrupt_as_request(control: Control) -> Iterator[list[int]]:
    """Turns the first Ctrl-C into a request to stop; a second one raises KeyboardInterrupt at once.

    Yields the list of the requests. Nothing changes in other threads than the main one, and where Ctrl-C has a handler
    that Python did not install and cannot restore, as in a program that embeds Python.
    """
    requests: list[int] = []
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is None:
        yield requests
        return

    def stop(number: int, _: object) -> None:
        if control.stop:
            raise KeyboardInterrupt
        requests.append(number)
        control.stop = True

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield requests
    finally:
        signal.signal(signal.SIGINT, before)


def _refuse_devices(training: TrainConfig | None) -> None:
    """Raises ConfigError for more than one process, which Python cannot start from its own."""
    if training is not None and training.n_processes not in (None, 1):
        raise ConfigError(
            f"devices ({training.n_processes}) must be 1 in Python; start several processes with minigpt train "
            "--devices, or give devices=1"
        )


def _request(
    sources: Sources,
    name: str | None,
    checkpoints: str | os.PathLike[str],
    base: str | os.PathLike[str] | None,
    settings: dict[str, Any],
    *,
    allow_change: bool = False,
) -> Request:
    several = [sources] if isinstance(sources, str | os.PathLike) else sources
    texts, options = tuple(os.fspath(each) for each in several), RunOptions.of({**settings, "from": base})
    folder = Path(checkpoints)
    return Request(sources=texts, name=name, checkpoints=folder, options=options, allow_change=allow_change)


def _result(generator: Generator[Event, None, Result]) -> Result:
    while True:
        try:
            next(generator)
        except StopIteration as end:
            return end.value
