"""The teacher of a distilled run: trained first, in the folder `teacher` of the run, and only read from then on."""

from dataclasses import dataclass

import torch

from minigpt.config import TrainConfig
from minigpt.distillation.planning import teacher_settings
from minigpt.errors import CheckpointError
from minigpt.model.gpt import GPT
from minigpt.runs.job import Job
from minigpt.runs.resume import has_ended, load_weights
from minigpt.storage.checkpoint import TRAINING, save_checkpoint
from minigpt.storage.files import exists
from minigpt.storage.run import Run


@dataclass(frozen=True)
class Teacher:
    """A teacher, its run and its settings; whether its run has begun before (`resume`) and has ended (`is_trained`)."""

    model: GPT
    run: Run
    config: TrainConfig
    resume: bool
    is_trained: bool


def open_teacher(job: Job) -> Teacher:
    """The teacher of a job; if it has not begun yet, its run is created.

    Raises: CheckpointError if it is missing although the job's run has begun, is damaged, or cannot be written.
    """
    config, path = teacher_settings(job.config), job.run.teacher_path
    if exists(path / TRAINING):
        run = Run.open(path)
        model, _ = load_weights(run)
        if is_trained := has_ended(run):
            run.remove_states()
        else:
            run.revise(training=config, result=None)  # the length may have changed
            if model.config.dropout != job.model.config.dropout:
                model = GPT.from_tensors(model.config.replace(dropout=job.model.config.dropout), model.state_dict())
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


def keep_teacher(teacher: Teacher, job: Job) -> None:
    """Saves the teacher in the folder of a job's run that was moved to a new one."""
    if not exists(job.run.teacher_path / TRAINING):
        save_checkpoint(job.run.teacher_path, teacher.model, job.corpus.tokenizer, teacher.run.record, new=True)
