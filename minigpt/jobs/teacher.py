"""The teacher of a distilled run: trained first, in the folder `teacher` of the run, and only read from then on."""

import contextlib
from collections.abc import Generator
from dataclasses import dataclass

import torch

from minigpt.config import TrainConfig
from minigpt.device import resolve_device
from minigpt.errors import CheckpointError
from minigpt.evaluation.recorded_baselines import recorded_baselines
from minigpt.jobs.events import Started, TeacherTrained
from minigpt.jobs.job import Job
from minigpt.jobs.resume import load_weights
from minigpt.model.gpt import GPT
from minigpt.planning.distillation import teacher_settings
from minigpt.storage.checkpoint import TRAINING, save_checkpoint
from minigpt.storage.files import exists
from minigpt.storage.run import Run
from minigpt.training import events, loop
from minigpt.training.budget import planned_steps
from minigpt.training.clock import Control
from minigpt.training.distributed import World


@dataclass(frozen=True)
class Teacher:
    """A teacher, its run and its settings. `elapsed` is the part of the budget that was used when it ended, in seconds.

    `resume` says that its run has begun before; `is_trained`, that it has ended.
    """

    model: GPT
    run: Run
    config: TrainConfig
    resume: bool
    is_trained: bool

    @property
    def elapsed(self) -> float:
        result = self.run.record.result
        return (result and result.seconds) or 0.0


def open_teacher(job: Job) -> Teacher:
    """The teacher of a job; if it has not begun yet, its run is created.

    Raises: CheckpointError if it is missing although the job's run has begun, is damaged, or cannot be written.
    """
    config, path = teacher_settings(job.config), job.run.teacher_path
    if exists(path / TRAINING):
        run = Run.open(path)
        model, _ = load_weights(run)
        if is_trained := run.record.result is not None:
            run.remove_states()
        elif run.record.training != config:  # the length was changed
            run.update(training=config)
        return Teacher(model, run, config, resume=True, is_trained=is_trained)
    if job.run.last_progress() is not None:
        raise CheckpointError(
            f"{path} is missing, the teacher that {job.run.directory} learns from; copy it again, or start a new run "
            f"from those weights with --from {job.run.directory.name}"
        )
    torch.manual_seed(config.seed)
    model = GPT(job.model.config)
    record = job.run.record.replace(training=config, expected=None, number=None, changes=(), result=None)
    run = Run.create(path, model, job.corpus.tokenizer, record)
    return Teacher(model, run, config, resume=False, is_trained=False)


def train_teacher(
    job: Job, teacher: Teacher, control: Control | None, world: World | None
) -> Generator[Started | TeacherTrained | events.Event, None, bool]:
    """Trains the teacher to its end; returns whether it has reached that, and was not stopped before.

    Its events are those of training, with `TeacherTrained` instead of `Finished`.
    Raises: what `minigpt.train()` raises.
    """
    training = loop.train(
        teacher.model, job.corpus, teacher.config, teacher.run,
        resume=teacher.resume, control=control, world=world, elapsed=job.elapsed,
    )  # fmt: skip
    finished = None
    try:
        yield _started(job, teacher)
        with contextlib.closing(training):
            for event in training:
                if isinstance(event, events.Finished):
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


def _started(job: Job, teacher: Teacher) -> Started:
    progress = teacher.run.last_progress() if teacher.resume else None
    return Started(
        directory=teacher.run.directory,
        step=progress["step"] if progress else 0,
        device=str(resolve_device(teacher.config.device)),
        total_steps=planned_steps(teacher.config, len(job.corpus.train)),
        tokens_per_step=job.tokens_per_step,
        baselines=tuple(recorded_baselines(job.run.record)),
        scored_text=teacher.config.scored_text,
        is_teacher=True,
    )


def keep_with(run: Run, teacher: Teacher, job: Job) -> None:
    """Saves the teacher in the folder of a run that was moved to a new one.

    Raises: CheckpointError if it cannot be written.
    """
    if not exists(run.teacher_path / TRAINING):
        save_checkpoint(run.teacher_path, teacher.model, job.corpus.tokenizer, teacher.run.record, new=True)
