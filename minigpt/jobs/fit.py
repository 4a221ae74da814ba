"""Plans, starts and trains a run: what `minigpt train` and `minigpt.fit()` do."""

import contextlib
import functools
import os
import platform
import time
from collections.abc import Generator, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch

from minigpt import __version__, device
from minigpt.config import RunOptions, TrainConfig
from minigpt.errors import CheckpointError, ConfigError, FolderTakenError
from minigpt.evaluation import baselines
from minigpt.evaluation.recorded_baselines import recorded_baselines
from minigpt.jobs.events import Activity, Event, Planned, Started
from minigpt.jobs.job import Job
from minigpt.jobs.plan import Plan
from minigpt.jobs.reading import ByteProgress, corpus_record, read_corpus
from minigpt.jobs.request import Request, Sources
from minigpt.jobs.resume import find_run, resume_run
from minigpt.model.gpt import GPT
from minigpt.planning import throughput
from minigpt.planning.corpus_stats import CorpusStats
from minigpt.planning.plan import FINE_TUNED, plan_preset, plan_settings
from minigpt.planning.throughput import StepTimer
from minigpt.storage.checkpoint import Checkpoint, free_name
from minigpt.storage.run import Run, read_record
from minigpt.storage.run_record import BaselineRecord, BaselinesRecord, Environment, RunRecord
from minigpt.training import events, loop
from minigpt.training.budget import planned_steps
from minigpt.training.clock import Control
from minigpt.training.distributed import World
from minigpt.training.events import Finished, Notice

Result = TypeVar("Result")


def plan(
    sources: Sources,
    *,
    name: str | None = None,
    checkpoints: str | os.PathLike[str] = "checkpoints",
    base: str | None = None,
    **settings: Any,
) -> Plan:
    """Plans a run: measures this machine and chooses every setting that is not given. Writes no run.

    `sources` are text files, folders or globs. `settings` are `preset`, `tokenizer` and the settings of `minigpt train`
    (`minutes`, `steps`, `n_layer`, `learning_rate`, ...); `base` is a model to fine-tune, by name or path.
    Raises: ConfigError for settings that are out of bounds, contradict each other or do not fit into memory; DataError.

    >>> plan = minigpt.plan("corpus.txt", minutes=2)
    >>> print(plan)
    checkpoints/corpus
    text          ...
    >>> plan.model.n_layer, plan.training.minutes
    (4, 2)
    """
    request = _request(sources, name, checkpoints, base, settings)
    processes = request.options.training.devices or 1
    return _result(plan_run(request, processes, processes))


def fit(
    sources: Sources | Plan = (),
    *,
    name: str | None = None,
    checkpoints: str | os.PathLike[str] = "checkpoints",
    base: str | None = None,
    resume: bool = False,
    allow_change: bool = False,
    report: bool = True,
    control: Control | None = None,
    **settings: Any,
) -> Iterator[Event]:
    """Trains a run exactly as `minigpt train` does, and yields what happens: plans it, trains, writes its report.

    `sources` are text files, folders or globs, or a plan of `minigpt.plan()`. `settings` are those of `plan()`. With
    `resume`, the run of that name continues, or else the newest run of that text; it may have begun in Python or with
    `minigpt train`, which resumes both kinds too. `allow_change` lets it change the learning rate, the batch, the seed
    or the text. Leaving the loop over the events stops training and saves the run; so does `control.stop`. Without
    `report`, no report.html is written.
    Raises: what `plan()` raises; TrainingError if training diverges; CheckpointError if the run cannot be written.

    >>> for event in minigpt.fit("corpus.txt", steps=20):
    ...     if isinstance(event, minigpt.Evaluation):
    ...         print(event.step, event.validation_loss)
    0 ...
    >>> finished = minigpt.show(minigpt.fit("corpus.txt", steps=30, resume=True))
    >>> finished.step
    30
    """
    if isinstance(sources, Plan):
        if name or base or resume or allow_change or settings:
            raise ConfigError("a plan has its settings: give them to plan(), or the texts to fit()")
        _refuse_devices(sources.training)
        return _fit(sources.request, sources, resume=False, report=report, control=control)
    request = _request(sources, name, checkpoints, base, settings, allow_change=allow_change)
    _refuse_devices(request.options.training)
    return _fit(request, None, resume=resume, report=report, control=control)


def _fit(
    request: Request, planned: Plan | None, *, resume: bool, report: bool, control: Control | None
) -> Iterator[Event]:
    if resume and request.options.training.devices is None and (directory := find_run(request)) is not None:
        _refuse_devices(read_record(directory).training)
    job = yield from (start_run(planned) if planned else prepare(request, resume=resume))
    finished: Finished | None = None
    unsaved: CheckpointError | None = None
    try:
        for event in train(job, control=control):
            if isinstance(event, Finished):
                finished = event
            else:
                yield event
    except CheckpointError as error:  # of an end that could not be saved
        if finished is None:
            raise
        unsaved = error
    if finished is not None:
        yield from (Notice(finished.step, text) for text in write_pages(job.run, report=report))
        yield finished
    if unsaved is not None:
        raise unsaved


def _refuse_devices(training: TrainConfig | None) -> None:
    """Raises ConfigError for more than one process, which Python cannot start from its own."""
    if training is not None and training.devices not in (None, 1):
        raise ConfigError(
            f"devices ({training.devices}) must be 1 in Python; start several processes with minigpt train --devices, "
            "or give devices=1"
        )


def _request(
    sources: Sources,
    name: str | None,
    checkpoints: str | os.PathLike[str],
    base: str | None,
    settings: dict[str, Any],
    *,
    allow_change: bool = False,
) -> Request:
    options = RunOptions.of({**settings, "from": base})
    return Request.of(sources, name=name, checkpoints=checkpoints, options=options, allow_change=allow_change)


def _result(generator: Generator[Event, None, Result]) -> Result:
    """The value that the generator returns."""
    while True:
        try:
            next(generator)
        except StopIteration as end:
            return end.value


# The parts, as the command line calls them.


def prepare(
    request: Request,
    *,
    resume: bool,
    processes: int = 1,
    local_processes: int = 1,
    progress: ByteProgress | None = None,
) -> Generator[Event, None, Job]:
    """Makes a job ready: with `resume` the run that the request describes, if there is one, else a new run.

    Of the `processes` that will train, `local_processes` are on this machine.
    Raises: MinigptError.
    """
    directory = find_run(request) if resume else None
    if directory is not None:
        return (yield from resume_run(request, directory, progress))
    if resume:
        yield Notice(0, "there is no such run yet, so it starts now")
    planned = yield from plan_run(request, processes, local_processes, progress)
    return (yield from start_run(planned, processes))


def plan_run(
    request: Request, processes: int = 1, local_processes: int = 1, progress: ByteProgress | None = None
) -> Generator[Event, None, Plan]:
    """Reads the text, measures this machine and plans the run; yields the plan, then a notice for each of its notes.

    Raises: MinigptError.
    """
    if not request.sources:
        raise ConfigError("there is no text to train on; give a text file: minigpt train corpus.txt")
    options, checkpoints = request.options, request.checkpoints
    target = device.resolve_device(options.training.device)
    dtype = device.resolve_dtype(options.training.dtype, target)
    base = yield from _open_base(options, checkpoints)
    corpus = yield from read_corpus(
        request.sources, base.tokenizer if base else options.tokenizer, options.reading, progress
    )
    began = time.perf_counter()
    yield Activity("measuring this machine")
    stats, memory = CorpusStats.of(corpus), device.free_memory(target)
    dtypes: tuple[str, ...] = ()
    if target.type == "cpu":
        memory //= local_processes
        dtypes = ("float32", "bfloat16") if device.multiplies_bfloat16_faster() else ("float32",)
    elif dtype != torch.float16:  # recorded by name, so that the run keeps it; not float16, which a CPU lacks
        options = options.with_training(dtype=str(dtype).removeprefix("torch."))
    timer = StepTimer(functools.partial(throughput.seconds_per_step, device=target, processes=processes), dtypes)
    preset = options.preset or (
        FINE_TUNED if base else plan_preset(stats, target.type, memory, options, timer, processes)
    )
    settings = plan_settings(
        stats,
        options,
        device_type=target.type,
        free_memory=memory,
        preset=preset,
        base=base.model.config if base else None,
        timer=timer,
        processes=processes,
    )
    yield Activity("")
    _check_minutes(settings.training.minutes, time.perf_counter() - began, settings.seconds_per_step)
    notes = list(settings.notes)
    compiles = target.type == "cuda" and settings.training.sharding != "on"
    if settings.training.compile == "on" or (settings.training.compile == "auto" and compiles):
        notes.append("the speed was measured without torch.compile, which may increase it")
    directory = checkpoints / free_name(request.run_name, checkpoints)
    if directory.name != request.run_name:
        notes.append(
            f"{checkpoints / request.run_name} already exists, so this run is {directory.name}; to continue the "
            f"existing run: --resume --name {request.run_name}"
        )
    planned = Plan(
        request=request,
        directory=directory,
        corpus=corpus,
        settings=settings,
        base=base,
        device=target,
        notes=tuple(notes),
        seconds=time.perf_counter() - began,
    )
    yield Planned(planned)
    for note in notes:
        yield Notice(0, note)
    return planned


def _open_base(options: RunOptions, checkpoints: Path) -> Generator[Event, None, Checkpoint | None]:
    """The model to fine-tune, if any.

    Raises: CheckpointError; ConfigError for another tokenizer than the model's.
    """
    if options.base is None:
        return None
    from minigpt.importers.open_model import find_model, load_model

    base, notes = load_model(find_model(options.base, checkpoints), "cpu")
    for note in notes:
        yield Notice(0, f"note: {note}")
    if options.tokenizer not in (None, base.tokenizer.name):
        raise ConfigError(
            f"tokenizer ({options.tokenizer}) cannot be chosen with --from: {base.directory} has its own, "
            f"{base.tokenizer.name}"
        )
    return base


def _check_minutes(minutes: float | None, measuring: float, step: float) -> None:
    """Raises ConfigError if the budget ends before the first step."""
    needed = measuring + step
    if minutes is not None and 60 * minutes < needed:
        raise ConfigError(
            f"minutes ({minutes:g}) are over before the first step: measuring this machine took {measuring:.1f} s, and "
            f"a step takes {step:.2g} s; give at least {2 * needed / 60:.2g}, or --steps"
        )


def start_run(planned: Plan, processes: int = 1) -> Generator[Event, None, Job]:
    """Starts the planned run: builds its model, measures the baselines, and creates and locks its folder.

    Raises: CheckpointError if the folder cannot be written.
    """
    began = time.perf_counter()
    request, settings, corpus, base = planned.request, planned.settings, planned.corpus, planned.base
    torch.manual_seed(settings.training.seed)
    model = GPT.from_tensors(settings.model, base.model.state_dict()) if base else GPT(settings.model)
    yield Activity("measuring the baselines on the held-out text")
    measured = baselines.cheap_baselines(corpus)
    yield Activity("")
    record = RunRecord(
        minigpt=__version__,
        torch=torch.__version__,
        started=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        device=str(planned.device),
        environment=_environment(planned.device, processes),
        sources=request.absolute_sources,
        asked=RunOptions.of(request.asked),
        reading=request.options.reading,
        base=str(base.directory) if base else None,
        preset=settings.preset,
        tokenizer=corpus.tokenizer.name,
        corpus=corpus_record(corpus),
        baselines=BaselinesRecord(
            fingerprint=corpus.fingerprint, measured=tuple(BaselineRecord(**asdict(one)) for one in measured)
        ),
        model=settings.model,
        training=settings.training,
        expected=settings.expected,
    )
    directory, run = planned.directory, None
    while run is None:
        try:
            run = Run.create(directory, model, corpus.tokenizer, record)
        except FolderTakenError:  # since it was planned
            taken, directory = directory, directory.with_name(free_name(request.run_name, request.checkpoints))
            yield Notice(0, f"another run has just created {taken}, so this run is {directory.name}")
    run.lock()
    elapsed = planned.seconds + time.perf_counter() - began
    return Job(model, corpus, settings.training, run, resume=False, elapsed=elapsed)


def _environment(target: torch.device, processes: int) -> Environment:
    return Environment(
        python=platform.python_version(),
        system=platform.platform(),
        cpu=_cpu_name(),
        gpu=torch.cuda.get_device_name(target) if target.type == "cuda" else None,
        cores=os.cpu_count(),
        threads=torch.get_num_threads(),
        processes=processes,
    )


def _cpu_name() -> str:
    """The processor's name if the system tells it, else its architecture."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def train(job: Job, *, control: Control | None = None, world: World | None = None) -> Iterator[Started | events.Event]:
    """Trains the job; yields `Started`, then the events of `minigpt.train()`.

    Raises: what `minigpt.train()` raises.
    """
    training = loop.train(
        job.model,
        job.corpus,
        job.config,
        job.run,
        resume=job.resume,
        control=control,
        world=world,
        elapsed=job.elapsed,
    )
    try:
        yield _started(job)
        yield from training
    finally:  # also if the caller leaves before the first event of training
        job.run.unlock()


def _started(job: Job) -> Started:
    progress = job.run.last_progress() if job.resume else None
    return Started(
        directory=job.run.directory,
        step=progress["step"] if progress else 0,
        device=str(device.resolve_device(job.config.device)),
        total_steps=planned_steps(job.config, len(job.corpus.train)),
        tokens_per_step=job.tokens_per_step,
        baselines=tuple(recorded_baselines(job.run.record)),
    )


def write_pages(run: Run, *, report: bool = True) -> Iterable[str]:
    """Draws the loss curve and writes the report of a run that has ended; yields a sentence on each.

    A run that is trained and saved does not fail because a page about it cannot be made.
    """
    from minigpt.reports import REPORT, loss_curve, run_report

    path = run.directory / "loss.png"
    try:
        known = {one.label: one.bits_per_byte for one in recorded_baselines(run.record)}
        loss_curve.draw_loss_curve(run.read_log(), path, known)
        yield f"loss curve: {path}"
    except ModuleNotFoundError:
        yield "no loss curve was drawn: it needs matplotlib (pip install 'minigpt[plot]')"
    except Exception as error:  # of any kind: training has ended and is saved
        yield f"no loss curve was drawn: {type(error).__name__}: {error}"
    if not report:
        return
    path = run.directory / REPORT
    try:
        run_report.write_report([run.directory], path)
        yield f"report: {path}"
    except Exception as error:
        yield f"no report was written: {type(error).__name__}: {error}"
