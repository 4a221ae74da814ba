"""The teacher of a distilled run: trained first, in the folder `teacher` of the run, and only read from then on."""

from collections.abc import Generator
from contextlib import closing
from dataclasses import replace

import torch

from minigpt.config import TrainConfig
from minigpt.distillation.planning import teacher_settings
from minigpt.distillation.settings import DistillationSettings
from minigpt.errors import CheckpointError
from minigpt.model.gpt import GPT
from minigpt.runs.events import StageEnded, Started, TrainingEvent
from minigpt.runs.job import Events, Job, Share, Stage, StageState, Train, write_changes
from minigpt.runs.plan import planner
from minigpt.runs.saved_state import last_state, load_weights
from minigpt.storage.checkpoint import TRAINING, save_checkpoint
from minigpt.storage.files import exists
from minigpt.storage.run import Run
from minigpt.training.clock import Control
from minigpt.training.events import Finished
from minigpt.training.world import World
from minigpt.units import count, duration, shown_loss

_OPTIONS = {"evaluates_whole_text": False}


class TeacherTrained(StageEnded):
    """The teacher of a distilled run has ended, and the model that learns from it begins."""

    @property
    def text(self) -> str:
        figures = f"{count(self.finished.step, 'step')} in {duration(self.finished.seconds)}"
        if self.finished.bits_per_byte is not None:
            tokens = count(self.finished.validation_tokens, "held-out token")
            figures += f", {shown_loss(self.finished.bits_per_byte)} bits per byte on {tokens}"
        return f"the teacher is trained ({figures}); now the model learns from it and from the text"


class TeacherStage(Stage):
    """Trains the teacher of a distilled job, unless that has ended already, and then the model that learns from it."""

    def train(self, train: Train, job: Share, control: Control, world: World) -> Events:
        if not _distills(job.config):
            yield from train(job, control, world)
            return
        try:
            teacher, is_trained = _open(job, world)
            if not is_trained:
                is_trained = yield from _train_teacher(train, teacher, job, control, world)
            if is_trained:
                yield from _train_student(train, teacher, job, control, world)
        finally:  # also if the caller leaves before the model begins
            if job.run is not None:
                job.run.unlock()

    def state(self, run: Run) -> StageState | None:
        path, config = run.teacher_path, run.record.training
        if config is None or not _distills(config) or not exists(path / TRAINING):
            return None
        teacher = Run.open(path)
        seconds = teacher.record.seconds
        if _has_ended(teacher):
            return StageState("after its teacher, which is trained", "", seconds, path)
        if (state := last_state(teacher)) is None:
            return None
        step = f"step {state.step:,}"
        return StageState(f"from {step} of its teacher", f"{step} of the teacher", seconds, path)


def _distills(config: object) -> bool:
    assert isinstance(config, DistillationSettings)
    return config.distill == "on"


def _open(job: Share, world: World) -> tuple[Share, bool]:
    """The job of a teacher, and whether it is trained. The main process opens it, and tells the others."""
    if isinstance(job, Job):
        trained, is_trained = open_teacher(job)
        world.broadcast_object({"resume": trained.resume, "is_trained": is_trained})
        return trained, is_trained
    begun = world.broadcast_object(None)
    model = GPT(job.model.config)  # with arbitrary weights, until those of the main process arrive
    teacher = replace(job, model=model, config=teacher_settings(job.config), resume=begun["resume"], options=_OPTIONS)
    return teacher, begun["is_trained"]


def open_teacher(job: Job) -> tuple[Job, bool]:
    """The job of a job's teacher, and whether that has ended; if it has not begun yet, its run is created.

    Raises: CheckpointError if it is missing although the job's run has begun, is damaged, or cannot be written.
    """
    config, path = teacher_settings(job.config), job.run.teacher_path
    if exists(path / TRAINING):
        run = Run.open(path)
        model, _ = load_weights(run)
        if is_trained := _has_ended(run):
            run.remove_states()
        else:
            run.revise(training=config, result=None)  # the length may have changed
            if model.config.dropout != job.model.config.dropout:
                model = GPT.from_tensors(model.config.replace(dropout=job.model.config.dropout), model.state_dict())
        return _teacher_job(job, model, run, config, resume=True), is_trained
    if job.run.last_progress() is not None:
        raise CheckpointError(
            f"{path} is missing, the teacher that {job.run.directory} learns from; copy it again, or start a new run "
            f"from those weights with --from {job.run.directory.name}"
        )
    torch.manual_seed(config.seed)
    model = GPT(job.model.config)
    record = job.run.record.replace(training=config, expected=None, number=None, changes=(), result=None)
    run = Run.create(path, model, job.corpus.tokenizer, record)
    return _teacher_job(job, model, run, config, resume=False), False


def _teacher_job(job: Job, model: GPT, run: Run, config: TrainConfig, *, resume: bool) -> Job:
    return replace(job, model=model, run=run, config=config, resume=resume, plan=None, options=_OPTIONS)


def _train_teacher(
    train: Train, teacher: Share, job: Share, control: Control, world: World
) -> Generator[TrainingEvent, None, bool]:
    """Trains the teacher to its end; returns whether it has reached that, and was not stopped before.

    Its events are those of training, with `TeacherTrained` instead of `Finished`.
    """
    finished = None
    with closing(train(teacher, control, world)) as training:
        for event in training:
            if isinstance(event, Finished):
                finished = event
            elif isinstance(event, Started) and isinstance(job, Job):
                yield replace(event, is_teacher=True, baselines=planner().baselines(job.run.record))
                if job.resume:
                    write_changes(job)
            else:
                yield event
    if finished is None:
        return False
    if teacher.run is not None:
        teacher.run.remove_states()
    yield TeacherTrained(finished)
    return True


def _train_student(train: Train, teacher: Share, job: Share, control: Control, world: World) -> Events:
    """Trains the model that learns from the teacher, whose folder moves with that of the run."""
    seconds = job.elapsed if teacher.run is None else teacher.run.record.seconds
    student = replace(job, elapsed=seconds, options={**job.options, "teacher": teacher.model})
    relocations = job.run.relocations if job.run else 0
    with closing(train(student, control, world)) as training:
        for event in training:
            if isinstance(job, Job) and relocations != job.run.relocations:
                relocations = job.run.relocations
                _save_again(teacher, job)
            yield event


def _save_again(teacher: Share, job: Job) -> None:
    """Saves the teacher in the folder of a job's run that was moved to a new one."""
    if teacher.run is not None and not exists(job.run.teacher_path / TRAINING):
        save_checkpoint(job.run.teacher_path, teacher.model, job.corpus.tokenizer, teacher.run.record, new=True)


def _has_ended(run: Run) -> bool:
    """Whether the run has a result, and no older state: if its last state was not saved, an earlier one goes on."""
    result = run.record.result
    if result is None:
        return False
    state = last_state(run)
    return state is None or result.step is None or state.step >= result.step
