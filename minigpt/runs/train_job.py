"""Training a job: its teacher first if it has one, then its model."""

import contextlib
from collections.abc import Generator, Iterator
from dataclasses import replace

from minigpt import device
from minigpt.autoplan.baselines import recorded_baselines
from minigpt.autoplan.next_steps import find_suspects
from minigpt.autoplan.speed_monitor import SpeedMonitor
from minigpt.config import TrainConfig
from minigpt.distillation.teacher import Teacher, keep_teacher, open_teacher
from minigpt.runs.events import SpeedChange, Started, TeacherTrained
from minigpt.runs.job import Job
from minigpt.runs.resume import resume_point, write_changes
from minigpt.storage.run import Run
from minigpt.training import events, loop
from minigpt.training.budget import Budget, planned_steps
from minigpt.training.clock import Control
from minigpt.training.events import Finished, Step
from minigpt.training.progress import Progress
from minigpt.training.spike_detection import RunDivergedError
from minigpt.training.world import World

TrainingEvent = Started | TeacherTrained | SpeedChange | events.Event


def train_job(
    job: Job, *, control: Control | None = None, world: World | None = None
) -> Generator[TrainingEvent, None, None]:
    """Trains the job; yields `Started`, then the events of `minigpt.train()`, and a `SpeedChange` if there is one.

    A distilled job trains its teacher first, unless that has ended already; `Finished` comes once, at the end.
    Closing it stops the training and saves.
    Raises: what `minigpt.train()` raises.
    """
    try:
        yield from _train(job, control, world)
    except RunDivergedError as error:
        suspects, _ = find_suspects(job.run.record, job.model.config, job.config, diverged=True)
        if not suspects:
            raise
        raise RunDivergedError(error.observed, suspects) from error


def _train(job: Job, control: Control | None, world: World | None) -> Iterator[TrainingEvent]:
    if job.config.distill != "on":
        yield from _train_model(job, None, control, world)
        return
    try:
        teacher = open_teacher(job)
        if world is not None:
            world.broadcast_object({"resume": teacher.resume, "is_trained": teacher.is_trained})
        if not teacher.is_trained and not (yield from _train_teacher(job, teacher, control, world)):
            return
        yield from _train_model(replace(job, elapsed=teacher.run.record.seconds), teacher, control, world)
    finally:  # also if the caller leaves before the model begins
        job.run.unlock()


def _train_teacher(
    job: Job, teacher: Teacher, control: Control | None, world: World | None
) -> Generator[TrainingEvent, None, bool]:
    """Trains the teacher to its end; returns whether it has reached that, and was not stopped before.

    Its events are those of training, with `TeacherTrained` instead of `Finished`.
    """
    finished = None
    try:
        yield from _start(job, teacher.run, teacher.config, resume=teacher.resume)
        training = loop.train(
            teacher.model, job.corpus, teacher.config, teacher.run,
            resume=teacher.resume, control=control, world=world, elapsed=job.elapsed, evaluates_whole_text=False,
        )  # fmt: skip
        with contextlib.closing(training):
            for event in training:
                if isinstance(event, Finished):
                    finished = event
                else:
                    yield event
    finally:
        teacher.run.unlock()
    if finished is None:
        return False
    teacher.run.remove_states()
    yield TeacherTrained(finished)
    return True


def _train_model(
    job: Job, teacher: Teacher | None, control: Control | None, world: World | None
) -> Iterator[TrainingEvent]:
    """Trains the job's model, with its trained teacher if it has one."""
    relocations = job.run.relocations
    try:
        yield from _start(job, job.run, job.config, resume=job.resume)
        training = loop.train(
            job.model, job.corpus, job.config, job.run,
            resume=job.resume, control=control, world=world, elapsed=job.elapsed,
            teacher=teacher.model if teacher else None,
        )  # fmt: skip
        monitor = SpeedMonitor(job.planned) if job.planned is not None else None
        with contextlib.closing(training):  # so that leaving here stops the training and saves
            for event in training:
                if teacher is not None and relocations != job.run.relocations:
                    relocations = job.run.relocations
                    keep_teacher(teacher, job)
                yield event
                if monitor is not None and isinstance(event, Step) and (change := monitor.observe(event)) is not None:
                    yield change
    finally:  # also if the caller leaves before the first event of training
        job.run.unlock()


def _start(job: Job, run: Run, config: TrainConfig, *, resume: bool) -> Iterator[Started]:
    """Says how the training of `run` starts, which is the job's own or its teacher's; then writes what has changed.

    If the caller leaves at that event, a resumed run stays as it was.
    """
    budget = Budget(config, planned_steps(config, len(job.corpus.train)))
    state = resume_point(run, budget) if resume else None
    yield Started(
        directory=run.directory,
        step=state.step if state else 0,
        device=str(device.resolve_device(config.device)),
        total_steps=budget.last_step(state or Progress()),
        tokens_per_step=job.tokens_per_step,
        baselines=tuple(recorded_baselines(job.run.record)),
        scored_text=config.scored_text,
        is_teacher=run is not job.run,
    )
    if job.resume:
        write_changes(job)
    if resume and run is not job.run:
        run.update()
