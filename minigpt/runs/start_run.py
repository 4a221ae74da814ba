"""Makes a training job ready: plans a new run and creates its folder, or resumes one."""

import contextlib
import os
import platform
import time
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import torch

from minigpt import __version__, device
from minigpt.data.corpus import Corpus
from minigpt.data.token_writer import ByteProgress
from minigpt.errors import ConfigError, FolderTakenError
from minigpt.model.gpt import GPT
from minigpt.pretrained.open_model import find_model, load_model
from minigpt.pretrained.unread_characters import unread_characters
from minigpt.run_options import Request, RunOptions
from minigpt.runs.changes import asked_by
from minigpt.runs.events import Event, Planned
from minigpt.runs.find_run import absolute_sources, find_run, run_name
from minigpt.runs.job import Job
from minigpt.runs.plan import Draft, Plan, planner
from minigpt.runs.reading import corpus_record, read_corpus
from minigpt.runs.resume import resume_run
from minigpt.storage.adapters import adapter_of
from minigpt.storage.checkpoint import TRAINING, Checkpoint, free_name
from minigpt.storage.files import exists
from minigpt.storage.run import Run
from minigpt.storage.run_record import BaselinesRecord, Environment, RunRecord
from minigpt.storage.runs import next_number
from minigpt.storage.shipped_models import reference_to
from minigpt.training.events import Activity, Notice
from minigpt.training.prepare import prepare_model
from minigpt.training.world import World

_SEARCHED_TOKENS = 1_000_000  # for characters that a model to fine-tune lacks
_MOST_SHOWN = 10


def prepare(
    request: Request, *, resume: bool, world: World | None = None, progress: ByteProgress | None = None
) -> Generator[Event, None, Job]:
    """Makes a job ready: with `resume` the run that the request describes, if there is one, else a new run.

    So it does if a launcher has started the processes again that began the run.
    """
    world = world or World()
    restarted = world.was_restarted and not resume
    directory = find_run(request, restarted=restarted) if resume or restarted else None
    if directory is not None:
        return (yield from resume_run(request, directory, world.size, progress))
    if resume or restarted:
        yield Notice(0, "there is no such run yet, so it starts now")
    planned = yield from plan_run(request, world.size, world.local_size, progress)
    return (yield from start_run(planned))


def plan_run(
    request: Request, processes: int = 1, local_processes: int = 1, progress: ByteProgress | None = None
) -> Generator[Event, None, Plan]:
    """Reads the text and chooses the settings that were not given; yields the plan, then a notice for each note."""
    if not request.sources:
        raise ConfigError("there is no text to train on; give a text file: minigpt train corpus.txt")
    options, checkpoints = request.options, request.checkpoints
    target = device.resolve_device(options.training.device)
    device.resolve_dtype(options.training.dtype, target)  # raises what the trainer would
    base = yield from _open_base(options, checkpoints)
    corpus = yield from read_corpus(
        request.sources, base.tokenizer if base else options.tokenizer, options.reading, progress
    )
    corpus.check_loss_on(options.training.scored_role)
    taken = checkpoints / run_name(request)
    draft = Draft(
        request=request, directory=taken, corpus=corpus, base=base, device=target,
        processes=processes, local_processes=local_processes,
    )  # fmt: skip
    planned = yield from planner().plan(draft)
    yield Activity("")
    directory = checkpoints / free_name(run_name(request), checkpoints)
    if directory != taken:
        existing = f"; to continue the existing run: --resume --name {taken.name}" if exists(taken / TRAINING) else ""
        note = f"{taken} already exists, so this run is {directory.name}{existing}"
        planned = replace(planned, directory=directory, notes=(*planned.notes, note))
    yield Planned(planned)
    for note in planned.notes:
        yield Notice(0, note)
    return planned


def _open_base(options: RunOptions, checkpoints: Path) -> Generator[Event, None, Checkpoint | None]:
    """The model to fine-tune, if any."""
    options.training.check_base(options.base)
    if options.base is None:
        return None
    path = find_model(options.base, checkpoints)
    base, notes = load_model(path, "cpu", checkpoints=checkpoints, mapped=options.training.maps_base)
    for note in notes:
        yield Notice(0, f"note: {note}")
    if options.tokenizer not in (None, base.tokenizer.name):
        raise ConfigError(
            f"tokenizer ({options.tokenizer}) cannot be chosen with --from: {base.directory} has its own, "
            f"{base.tokenizer.name}"
        )
    return base


def start_run(planned: Plan, *, keeps_plan: bool = False) -> Generator[Event, None, Job]:
    """Starts the planned run: builds its model, and creates and locks its folder.

    The model to fine-tune, if any, is trained in place. With `keeps_plan`, a copy of the weights that are trained takes
    memory, and the plan can be started again.
    Raises: CheckpointError if the folder cannot be written.
    """
    began = time.perf_counter()
    request, corpus, base = planned.request, planned.corpus, planned.base
    torch.manual_seed(planned.training.seed)
    model = GPT.from_tensors(planned.model, base.model.state_dict()) if base else GPT(planned.model)
    prepare_model(model, planned.training)
    if base and keeps_plan:
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.clone()
    adapter = adapter_of(model)
    record = RunRecord(
        minigpt=__version__,
        torch=torch.__version__,
        started=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        number=next_number(request.checkpoints),
        device=str(planned.device),
        environment=Environment(
            python=platform.python_version(),
            system=platform.platform(),
            cpu=_cpu_name(),
            gpu=torch.cuda.get_device_name(planned.device) if planned.device.type == "cuda" else None,
            cores=os.cpu_count(),
            threads=torch.get_num_threads(),
            processes=planned.processes,
        ),
        sources=absolute_sources(request),
        asked=RunOptions.of(asked_by(request)),
        reading=request.options.reading,
        base=reference_to(base.directory) if base else None,
        adapter_base=adapter.record_base(base.directory, base.model)
        if base and (adapter := adapter_of(model))
        else None,
        preset=planned.preset,
        tokenizer=corpus.tokenizer.name,
        chat_template=corpus.tokenizer.chat_template,
        corpus=corpus_record(corpus),
        baselines=BaselinesRecord(
            fingerprint=corpus.fingerprint,
            # They are of the whole text, and not comparable with losses that leave messages out.
            measured=planned.baselines if corpus.scores_all("all") else (),
        ),
        model=planned.model,
        training=planned.training,
        expected=planned.expected,
        other={"plan": planned.rows()},
    )
    directory, run = planned.directory, None
    while run is None:
        try:
            run = Run.create(directory, model, corpus.tokenizer, record)
        except FolderTakenError:  # since it was planned
            taken, directory = directory, directory.with_name(free_name(run_name(request), request.checkpoints))
            yield Notice(0, f"another run has just created {taken}, so this run is {directory.name}")
    run.lock()
    lacking = unread_characters(model, corpus.tokenizer, _beginning(corpus)) if base else []
    if base and lacking:
        shown = ", ".join(map(repr, lacking[:_MOST_SHOWN])) + (" and others" if len(lacking) > _MOST_SHOWN else "")
        yield Notice(
            0,
            f"the vocabulary of {base.directory} has no token for {shown}, which are in the text: the model reads each "
            "of them as the same input, and cannot learn them",
        )
    elapsed = planned.seconds + time.perf_counter() - began
    return Job(
        model=model, corpus=corpus, config=planned.training, run=run, resume=False, elapsed=elapsed, plan=planned
    )


def _beginning(corpus: Corpus) -> str:
    """The beginning of the training text; empty unless the tokenizer is one of characters."""
    if corpus.tokenizer.characters is None:
        return ""
    tokens = corpus.train[:_SEARCHED_TOKENS]
    return corpus.tokenizer.decode(tokens[tokens != corpus.tokenizer.end_of_text].tolist())


def _cpu_name() -> str:
    """The processor's name if the system reports it, else its architecture."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()
