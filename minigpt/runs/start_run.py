"""Starting a training job: plan a new run and create its folder, or resume one."""

import contextlib
import os
import platform
import time
from collections.abc import Generator
from pathlib import Path

import torch

from minigpt import __version__
from minigpt.autoplan.plan_run import plan_run
from minigpt.data.corpus import Corpus
from minigpt.data.token_writer import ByteProgress
from minigpt.errors import FolderTakenError
from minigpt.lora.adapter import weights_hash
from minigpt.lora.fine_tuning import apply_fine_tuning
from minigpt.model.gpt import GPT
from minigpt.pretrained.unread_characters import unread_characters
from minigpt.run_options import RunOptions
from minigpt.runs.events import Event
from minigpt.runs.find_run import find_run
from minigpt.runs.job import Job
from minigpt.runs.plan import Plan
from minigpt.runs.reading import corpus_record
from minigpt.runs.request import Request
from minigpt.runs.resume import resume_run
from minigpt.storage.checkpoint import Checkpoint, free_name
from minigpt.storage.run import Run
from minigpt.storage.run_record import AdapterBase, BaselinesRecord, Environment, RunRecord
from minigpt.storage.runs import next_number
from minigpt.training.events import Notice

_SEARCHED_TOKENS = 1_000_000  # for characters that a model to fine-tune lacks
_MOST_SHOWN = 10


def prepare(
    request: Request,
    *,
    resume: bool,
    restarted: bool = False,
    processes: int = 1,
    local_processes: int = 1,
    progress: ByteProgress | None = None,
) -> Generator[Event, None, Job]:
    """Makes a job ready: with `resume` the run that the request describes, if there is one, else a new run.

    `restarted`: a launcher has started the command again that began the run.

    Of the `processes` that will train, `local_processes` are on this machine.
    """
    directory = find_run(request, restarted=restarted) if resume or restarted else None
    if directory is not None:
        return (yield from resume_run(request, directory, processes, progress))
    if resume or restarted:
        yield Notice(0, "there is no such run yet, so it starts now")
    planned = yield from plan_run(request, processes, local_processes, progress)
    return (yield from start_run(planned, processes))


def start_run(planned: Plan, processes: int = 1, *, keeps_plan: bool = False) -> Generator[Event, None, Job]:
    """Starts the planned run: builds its model, measures the baselines, and creates and locks its folder.

    The model to fine-tune, if any, is trained in place. With `keeps_plan`, a copy of the weights that are trained takes
    memory, and the plan can be started again.
    Raises: CheckpointError if the folder cannot be written.
    """
    began = time.perf_counter()
    request, settings, corpus, base = planned.request, planned.settings, planned.corpus, planned.base
    torch.manual_seed(settings.training.seed)
    model = GPT.from_tensors(settings.model, base.model.state_dict()) if base else GPT(settings.model)
    apply_fine_tuning(model, settings.training)
    if base and keeps_plan:
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.clone()
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
            processes=processes,
        ),
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
            # They are of the whole text, and not comparable with losses that leave messages out.
            measured=tuple(planned.baselines) if corpus.scores_all("all") else (),
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
    lacking = unread_characters(model, corpus.tokenizer, _beginning(corpus)) if base else []
    if base and lacking:
        shown = ", ".join(map(repr, lacking[:_MOST_SHOWN])) + (" and others" if len(lacking) > _MOST_SHOWN else "")
        yield Notice(
            0,
            f"the vocabulary of {base.directory} has no token for {shown}, which are in the text: the model reads each "
            "of them as the same input, and cannot learn them",
        )
    elapsed = planned.seconds + time.perf_counter() - began
    return Job(model, corpus, settings.training, run, resume=False, elapsed=elapsed, planned=settings)


def _beginning(corpus: Corpus) -> str:
    """The beginning of the training text; empty unless the tokenizer is one of characters."""
    if corpus.tokenizer.characters is None:
        return ""
    tokens = corpus.train[:_SEARCHED_TOKENS]
    return corpus.tokenizer.decode(tokens[tokens != corpus.tokenizer.end_of_text].tolist())


def _adapter_base(base: Checkpoint) -> AdapterBase:
    """The base model as the files of an adapter name it: by its name on the hub, else by its absolute path.

    A model whose queries were scaled when it was imported is not the one on the hub.
    """
    from minigpt.pretrained.gpt2 import hub_name
    from minigpt.pretrained.open_model import has_scaled_queries

    name = None if has_scaled_queries(base.directory) else hub_name(base.directory)
    return AdapterBase(name=name or str(base.directory.resolve()), sha256=weights_hash(base.model))


def _cpu_name() -> str:
    """The processor's name if the system reports it, else its architecture."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()
