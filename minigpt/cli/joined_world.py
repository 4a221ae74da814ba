"""One of the processes that train together: it joins the others, gets its job from the main one, and reports errors.

A process that has to start the others first does that in `launch.py` and does not train.
"""

import atexit
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from minigpt.cli.launch import LAUNCHER, LOST, launch, requested_devices
from minigpt.cli.signals import ignore_sigterm, signals_as_requests
from minigpt.errors import ConfigError, DataError, MinigptError, TrainingError

if TYPE_CHECKING:
    from minigpt.config import GPTConfig
    from minigpt.jobs.job import Job
    from minigpt.jobs.request import Request
    from minigpt.model.gpt import GPT
    from minigpt.training.distributed import World


@contextmanager
def joined_world(request: "Request", *, resume: bool) -> Iterator["World"]:
    """The group of processes that train together, including this one.

    If this process has to start the others, it does not train: it starts them and exits with their exit code. Only one
    process reports an error.
    Raises: ConfigError or DeviceError if this machine cannot run that number of processes.
    """
    from minigpt.training.launchers import is_launched

    if not is_launched():
        count, device = requested_devices(request, resume)
        if count > 1:
            raise typer.Exit(launch(count, device, request))
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # no warnings of hosts without a name for their address
    from minigpt.threads import respect_cpu_quota
    from minigpt.training.distributed import ProcessLostError
    from minigpt.training.process_group import init_world
    from minigpt.training.rendezvous import MainFailedError

    respect_cpu_quota()
    try:
        world = init_world(_described(request, resume=resume))
    except MainFailedError as error:
        raise typer.Exit(1) from error
    try:
        with _closing(world), world.translate_errors():
            _check_devices(world, request, continues(world, resume=resume))
            yield world
    except ProcessLostError as error:
        if LAUNCHER in os.environ:
            os._exit(LOST)  # leaving the process group can hang forever once a process has died
        ignore_sigterm()
        if world.is_main and (failure := world.failure_of_others()) is not None:
            raise TrainingError(failure) from error
        if world.is_main or not world.main_failed():
            raise
        raise typer.Exit(1) from error
    except MinigptError as error:
        if world.is_main or not world.main_failed():
            is_known = world.announce(f"failed/{world.rank}", str(error))
            if world.is_main or LAUNCHER in os.environ or not is_known:
                raise
        raise typer.Exit(1) from error  # the main process reports the error
    except KeyboardInterrupt as interrupt:
        if world.is_main:
            raise
        raise typer.Exit(128 + signal.SIGINT) from interrupt


def continues(world: "World", *, resume: bool) -> bool:
    """Whether the run continues: as asked for, or because the launcher has started the processes again."""
    from minigpt.training.launchers import is_restarted

    return resume or is_restarted() or world.attempt > 0


def _described(request: "Request", *, resume: bool) -> dict[str, Any]:
    """What a process is to do, by names with plain values, to be compared with the other processes."""
    import torch

    from minigpt import __version__

    texts = ", ".join(request.sources)
    versions = {"minigpt": __version__, "torch": torch.__version__.partition("+")[0]}
    return versions | request.options.to_dict() | {"text": texts, "name": request.name, "resume": resume}


@contextmanager
def _closing(world: "World") -> Iterator[None]:
    """Closes the process group at an end that all processes reach.

    A process that fails exits without closing it, after its error message: NCCL would wait for operations that the
    others never start, and torch aborts a process that ends with an open group.
    """
    try:
        yield
    except (typer.Exit, BrokenPipeError):  # a requested stop, or output that nobody reads
        world.close()
        raise
    except BaseException as error:
        if world.size > 1:
            atexit.register(os._exit, 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1)
        raise
    world.close()


def _check_devices(world: "World", request: "Request", resume: bool) -> None:
    """Raises ConfigError or DeviceError, before anything slow begins, if these processes cannot train."""
    from minigpt.training.launchers import placement

    with world.translate_errors():  # other machines need not see the folder of the run to resume
        device = world.broadcast_object(requested_devices(request, resume)[1] if world.is_main else None)
    world.device(device)
    training = request.options.training
    if "batch_size" in request.options.given:
        world.rows(training.batch_size)
    if training.devices and training.devices != world.local_size:
        place = placement()
        started = (
            f"{place.launcher}, which started {place.local_size} processes on this machine"
            if place
            else ("WORLD_SIZE=1, with which a launcher says that it started one process")
        )
        raise ConfigError(f"devices ({training.devices}) cannot be combined with {started}; give one of the two")


def _is_running(launcher: int) -> bool:
    """Whether the process that started this one still runs."""
    if os.name == "nt":  # where the parent can be the redirector of a virtual environment
        import psutil

        return bool(psutil.pid_exists(launcher))
    return os.getppid() == launcher


def share_job(world: "World", job: "Job | None") -> None:
    """Sends the main process's job to the others; None if there is nothing to train."""
    from minigpt.jobs.job import SharedJob

    if job is None:
        world.broadcast_object(None)
        return
    world.announce("run", str(job.run.directory))
    world.broadcast_object(SharedJob.of(job).to_dict())


def train_with_main(world: "World") -> None:
    """Receives the job from the main process and trains without output, as every other process does."""
    from minigpt.data.corpus import Corpus
    from minigpt.jobs.job import SharedJob
    from minigpt.planning.distillation import teacher_settings
    from minigpt.training.clock import Control
    from minigpt.training.events import Event, Finished
    from minigpt.training.fine_tuning import apply_fine_tuning
    from minigpt.training.loop import train

    with world.translate_errors():
        message = world.broadcast_object(None)
    if message is None:
        return
    job = SharedJob.from_dict(message)
    try:
        corpus = Corpus.load(job.corpus)
    except DataError as error:
        raise DataError(
            f"process {world.rank + 1} of {world.size} cannot read the tokens of the text in {job.corpus}; set "
            "MINIGPT_CACHE to a folder that all machines share"
        ) from error
    model, control = _uninitialized(job.model), Control()
    apply_fine_tuning(model, job.training)
    launcher = os.environ.get(LAUNCHER)

    def reaches_end(events: Iterator[Event]) -> bool:
        ended = False
        for event in events:
            if launcher is not None and not _is_running(int(launcher)):  # it was killed
                control.stop = True
            ended = isinstance(event, Finished)
        return ended

    with signals_as_requests(control):
        teacher = None
        if job.training.distill == "on":
            teacher = _uninitialized(job.model)
            with world.translate_errors():
                begun = world.broadcast_object(None)
            config = teacher_settings(job.training)
            if not begun["is_trained"] and not reaches_end(
                train(
                    teacher, corpus, config,
                    resume=begun["resume"], control=control, world=world, evaluates_whole_text=False,
                )
            ):  # fmt: skip
                return
        reaches_end(
            train(model, corpus, job.training, resume=job.resume, control=control, world=world, teacher=teacher)
        )


def _uninitialized(config: "GPTConfig") -> "GPT":
    """A model with arbitrary weights, until those of the main process arrive."""
    import torch

    from minigpt.model.gpt import GPT

    with torch.device("meta"):
        shapes = GPT(config).state_dict()
    return GPT.from_tensors(config, {name: torch.empty_like(shape, device="cpu") for name, shape in shapes.items()})
