"""The stages of a training job, used by the command line and `minigpt.fit()`: plan, start, train, write pages."""

import contextlib
import functools
import os
import platform
import time
from collections.abc import Generator, Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import torch

from minigpt import __version__, device
from minigpt.config import TrainConfig
from minigpt.errors import ConfigError, FolderTakenError, MissingPackageError
from minigpt.evaluation import baselines
from minigpt.evaluation.recorded_baselines import recorded_baselines
from minigpt.jobs.events import Activity, Event, Planned, SpeedChange, Started, TeacherTrained
from minigpt.jobs.job import Job
from minigpt.jobs.plan import Plan
from minigpt.jobs.reading import ByteProgress, corpus_record, read_corpus
from minigpt.jobs.request import Request
from minigpt.jobs.resume import find_run, resume_run
from minigpt.jobs.speed_monitor import SpeedMonitor
from minigpt.jobs.teacher import Teacher, keep_with, open_teacher, train_teacher
from minigpt.model.gpt import GPT
from minigpt.planning import throughput
from minigpt.planning.corpus_stats import CorpusStats
from minigpt.planning.distillation import TEACHER_SHARE
from minigpt.planning.overheads import Overheads
from minigpt.planning.plan import FINE_TUNED, plan_preset, plan_settings
from minigpt.planning.planned_settings import PlannedSettings
from minigpt.planning.throughput import StepTimer
from minigpt.run_options import RunOptions
from minigpt.storage.adapter import is_adapter, weights_hash
from minigpt.storage.checkpoint import Checkpoint, free_name
from minigpt.storage.run import Run
from minigpt.storage.run_record import AdapterBase, BaselineRecord, BaselinesRecord, Environment, RunRecord
from minigpt.storage.runs import next_number
from minigpt.threads import TOLERANCE, OtherPrograms
from minigpt.training import events, loop
from minigpt.training.budget import planned_steps
from minigpt.training.clock import Control
from minigpt.training.distributed import World
from minigpt.training.events import Notice, Step
from minigpt.training.fine_tuning import apply_fine_tuning


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
    corpus.check_loss_on(options.training.loss_on)
    began, others = time.perf_counter(), OtherPrograms()
    yield Activity("measuring the baselines on the held-out text")
    measured = tuple(baselines.cheap_baselines(corpus))
    yield Activity("measuring this machine")
    stats, memory = CorpusStats.of(corpus, measured), device.free_memory(target)
    dtypes: tuple[str, ...] = ()
    if target.type == "cpu":
        memory //= local_processes
        dtypes = ("float32", "bfloat16") if device.multiplies_bfloat16_faster() else ("float32",)
    elif dtype != torch.float16:  # recorded by name, so that the run keeps it; not float16, which a CPU lacks
        options = options.with_training(dtype=str(dtype).removeprefix("torch."))
    measure = functools.partial(throughput.seconds_per_step, device=target, text=corpus, processes=processes)
    timer = StepTimer(measure, dtypes)
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
    settings = settings.measured_again(measure)
    _check_minutes(settings, time.perf_counter() - began)
    if settings.training.minutes is not None:
        settings = settings.with_overheads(
            Overheads.measured(
                settings.model, settings.training, corpus, target.type, settings.seconds_per_step,
                planning=time.perf_counter() - began,
            )
        )  # fmt: skip
    yield Activity("")
    directory = checkpoints / free_name(request.run_name, checkpoints)
    planned = Plan(
        request=request,
        directory=directory,
        corpus=corpus,
        settings=settings,
        base=base,
        device=target,
        baselines=measured,
        notes=(*settings.notes, *_notes(request, settings.training, target, directory, others.cores())),
        seconds=time.perf_counter() - began,
    )
    yield Planned(planned)
    for note in planned.notes:
        yield Notice(0, note)
    return planned


def _notes(
    request: Request, training: TrainConfig, target: torch.device, directory: Path, others: float
) -> Iterator[str]:
    """Sentences on a speed measured without torch.compile or beside other programs, and on a name already taken.

    `others` is the number of cores that other programs used.
    """
    compiles = target.type == "cuda" and training.sharding != "on"
    if training.compile == "on" or (training.compile == "auto" and compiles):
        yield "the speed was measured without torch.compile, which may increase it"
    if target.type == "cpu" and others > TOLERANCE:
        yield f"this machine is doing other things: other programs used {others:.1f} cores while the speed was measured"
    if directory.name != request.run_name:
        yield (
            f"{request.checkpoints / request.run_name} already exists, so this run is {directory.name}; to continue "
            f"the existing run: --resume --name {request.run_name}"
        )


def _open_base(options: RunOptions, checkpoints: Path) -> Generator[Event, None, Checkpoint | None]:
    """The model to fine-tune, if any.

    Raises: CheckpointError; ConfigError for another tokenizer than the model's.
    """
    if options.base is None:
        for name in ("lora", "freeze"):
            if getattr(options.training, name):
                raise ConfigError(f"{name} needs --from: the model to fine-tune")
        return None
    from minigpt.importers.open_model import find_model, load_model

    path = find_model(options.base, checkpoints)
    if options.training.lora and is_adapter(path):
        raise ConfigError(f"from ({options.base}) is an adapter itself; merge it first: minigpt merge {options.base}")
    # Weights that are compressed are read once, so they need not be copied into memory before.
    mapped = options.training.base_dtype != "float32"
    base, notes = load_model(path, "cpu", checkpoints=checkpoints, mapped=mapped)
    for note in notes:
        yield Notice(0, f"note: {note}")
    if options.tokenizer not in (None, base.tokenizer.name):
        raise ConfigError(
            f"tokenizer ({options.tokenizer}) cannot be chosen with --from: {base.directory} has its own, "
            f"{base.tokenizer.name}"
        )
    return base


def _check_minutes(settings: PlannedSettings, measuring: float) -> None:
    """Raises ConfigError if the budget, or the teacher's part of it, ends before the first step."""
    minutes, step, share, whose = settings.training.minutes, settings.seconds_per_step, 1.0, ""
    if settings.teacher is not None:
        step, share, whose = settings.teacher.seconds_per_step, TEACHER_SHARE, " of the teacher"
    needed = (measuring + step) / share
    if minutes is not None and 60 * minutes < needed:
        raise ConfigError(
            f"minutes ({minutes:g}) are over before the first step{whose}: measuring this machine took "
            f"{measuring:.1f} s, and a step takes {step:.2g} s; give at least {2 * needed / 60:.2g}, or --steps"
        )


def start_run(planned: Plan, processes: int = 1) -> Generator[Event, None, Job]:
    """Starts the planned run: builds its model, measures the baselines, and creates and locks its folder.

    Raises: CheckpointError if the folder cannot be written.
    """
    began = time.perf_counter()
    request, settings, corpus, base = planned.request, planned.settings, planned.corpus, planned.base
    torch.manual_seed(settings.training.seed)
    model = GPT.from_tensors(settings.model, base.model.state_dict()) if base else GPT(settings.model)
    apply_fine_tuning(model, settings.training)
    record = RunRecord(
        minigpt=__version__,
        torch=torch.__version__,
        started=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        number=next_number(request.checkpoints),
        device=str(planned.device),
        environment=_environment(planned.device, processes),
        sources=request.absolute_sources,
        asked=RunOptions.of(request.asked),
        reading=request.options.reading,
        base=str(base.directory) if base else None,
        adapter_base=_adapter_base(base) if base and settings.training.lora else None,
        preset=settings.preset,
        tokenizer=corpus.tokenizer.name,
        chat_template=corpus.tokenizer.chat_template,
        corpus=corpus_record(corpus),
        baselines=BaselinesRecord(
            fingerprint=corpus.fingerprint,
            measured=tuple(BaselineRecord(**asdict(baseline)) for baseline in planned.baselines),
        ),
        model=settings.model,
        training=settings.training,
        expected=(expected.low, expected.high) if (expected := settings.expected) is not None else None,
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
    return Job(model, corpus, settings.training, run, resume=False, elapsed=elapsed, planned=settings)


def _adapter_base(base: Checkpoint) -> AdapterBase:
    """The base model as the files of an adapter name it: by its name on the hub, else by its absolute path."""
    from minigpt.importers.gpt2 import hub_name

    return AdapterBase(name=hub_name(base.directory) or str(base.directory.resolve()), sha256=weights_hash(base.model))


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
    """The processor's name if the system reports it, else its architecture."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def train(
    job: Job, *, control: Control | None = None, world: World | None = None
) -> Iterator[Started | TeacherTrained | SpeedChange | events.Event]:
    """Trains the job; yields `Started`, then the events of `minigpt.train()`, and a `SpeedChange` if there is one.

    A distilled job trains its teacher first, unless that has ended already; `Finished` comes once, at the end.
    Raises: what `minigpt.train()` raises.
    """
    if job.config.distill != "on":
        yield from _train_model(job, None, control, world)
        return
    try:
        teacher = open_teacher(job)
        if world is not None:
            world.broadcast_object({"resume": teacher.resume, "is_trained": teacher.is_trained})
        if not teacher.is_trained and not (yield from train_teacher(job, teacher, control, world)):
            return
        yield from _train_model(replace(job, elapsed=teacher.elapsed), teacher, control, world)
    finally:  # also if the caller leaves before the model begins
        job.run.unlock()


def _train_model(
    job: Job, teacher: Teacher | None, control: Control | None, world: World | None
) -> Iterator[Started | SpeedChange | events.Event]:
    """Trains the job's model, with its trained teacher if it has one."""
    training = loop.train(
        job.model,
        job.corpus,
        job.config,
        job.run,
        resume=job.resume,
        control=control,
        world=world,
        elapsed=job.elapsed,
        teacher=teacher.model if teacher else None,
    )
    relocations = job.run.relocations
    try:
        yield _started(job)
        monitor = SpeedMonitor(job.planned) if job.planned is not None else None
        with contextlib.closing(training):  # so that leaving here stops the training and saves
            for event in training:
                if teacher is not None and relocations != job.run.relocations:
                    relocations = job.run.relocations
                    keep_with(job.run, teacher, job)
                yield event
                if monitor is not None and isinstance(event, Step) and (change := monitor.observe(event)) is not None:
                    yield change
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
        scored_text=job.config.scored_text,
    )


def write_pages(run: Run, *, report: bool = True) -> Iterable[str]:
    """Draws the loss curve and writes the report of a run that has ended; yields a sentence on each.

    A run that is trained and saved does not fail because a page about it cannot be made.
    """
    from minigpt.reports import REPORT, loss_curve, run_report

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
        run_report.write_report([run.directory], path)
        yield f"report: {path}"
    except Exception as error:
        yield f"no report was written: {type(error).__name__}: {error}"
