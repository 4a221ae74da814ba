"""One of the processes that train together: it joins the others, gets its job from the main one, and reports errors.

A process that has to start the others first does that in `launch.py` and does not train.
"""

import atexit
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Thread
from typing import TYPE_CHECKING, Any

import typer

from minigpt.cli.signals import signals_as_requests
from minigpt.config import GPTConfig, TrainConfig
from minigpt.distributed.launch import LOST, launch, requested_devices
from minigpt.distributed.launchers import is_child, is_launched, is_restarted
from minigpt.errors import ConfigError, DataError, MinigptError, TrainingError

if TYPE_CHECKING:
    from minigpt.distributed.process_group import JoinedWorld
    from minigpt.model.gpt import GPT
    from minigpt.run_options import Request
    from minigpt.training.clock import Control
    from minigpt.training.world import World


@contextmanager
def joined_world(request: "Request", *, resume: bool) -> Iterator["World"]:
    """The group of processes that train together, for the main one; the others train with it and exit.

    If this process has to start the others, it does not train: it starts them and exits with their exit code. Only one
    process reports an error.
    Raises: ConfigError or DeviceError if this machine cannot run that number of processes.
    """
    if not is_launched():
        count, device = requested_devices(request, resume)
        if count > 1:
            raise typer.Exit(launch(count, device, request))
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # no warnings of hosts without a name for their address
    from minigpt.distributed.process_group import init_world
    from minigpt.distributed.rendezvous import ProcessLostError
    from minigpt.threads import respect_cpu_quota

    respect_cpu_quota()
    world = init_world()
    try:
        with _closing(world), world.translate_errors():
            world.check_same(_described(request, resume=resume))
            world.was_restarted = world.was_restarted or is_restarted()
            _check_devices(world, request, resume or world.was_restarted)
            if not world.is_main:
                _train_with_main(world)
                raise typer.Exit
            yield world
    except ProcessLostError as error:
        if is_child():
            os._exit(LOST)  # leaving the process group can hang forever once a process has died
        # The process ends by itself, as soon as it has reported its error; torchrun and srun send SIGTERM to all
        # processes when one of them has failed.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if (failure := world.failure()) is None:
            raise
        raise (TrainingError(failure) if world.is_main else typer.Exit(1)) from error
    except MinigptError as error:
        main_failed = not world.is_main and world.failure() is not None
        if main_failed or (world.announce(f"failed/{world.rank}", str(error)) and not world.is_main):
            raise typer.Exit(1) from error  # the main process or the launcher reports it
        raise
    except KeyboardInterrupt as interrupt:
        if world.is_main:
            raise
        raise typer.Exit(128 + signal.SIGINT) from interrupt


def _described(request: "Request", *, resume: bool) -> dict[str, Any]:
    """What a process is to do, by names with plain values, to be compared with the other processes."""
    import torch

    from minigpt import __version__

    texts = ", ".join(request.sources)
    versions = {"minigpt": __version__, "torch": torch.__version__.partition("+")[0]}
    return versions | request.options.to_dict() | {"text": texts, "name": request.name, "resume": resume}


@contextmanager
def _closing(world: "JoinedWorld") -> Iterator[None]:
    """Closes the process group at an end that all processes reach.

    A process that fails exits without closing it, after its error message: NCCL would wait for operations that the
    others never start, and torch aborts a process that ends with an open group.
    """
    try:
        yield
    except BaseException as error:
        if world.size > 1 and not isinstance(error, (typer.Exit, BrokenPipeError)):
            atexit.register(os._exit, 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1)
        else:  # a requested stop, or output that nobody reads
            world.close()
        raise
    world.close()


def _check_devices(world: "World", request: "Request", resume: bool) -> None:
    """Raises ConfigError or DeviceError, before anything slow begins, if these processes cannot train."""
    # Other machines need not see the folder of the run to resume.
    world.device(world.broadcast_object(requested_devices(request, resume)[1] if world.is_main else None))
    training, devices = request.options.training, request.options.training.n_processes
    if "batch_size" in request.options.given:
        world.rows(training.batch_size)
    if devices and devices != world.local_size:
        raise ConfigError(
            f"devices ({devices}) must be {world.local_size}, the number of processes that torchrun or srun "
            "started on this machine, or be omitted"
        )


def _train_with_main(world: "World") -> None:
    """Receives the job from the main process and trains without output, as every other process does."""
    from minigpt.data.corpus import Corpus
    from minigpt.runs.job import Share, train_job
    from minigpt.training.clock import Control
    from minigpt.training.prepare import prepare_model

    if (message := world.broadcast_object(None)) is None:
        return
    training = TrainConfig(**message["training"])
    try:
        corpus = Corpus.load(message["tokens"])
    except DataError as error:
        raise DataError(
            f"process {world.rank + 1} of {world.size} cannot read the tokens of the text in {message['tokens']}; set "
            "MINIGPT_CACHE to a folder that all machines share, and keep files of tokens in one"
        ) from error
    corpus = replace(corpus, tokenizer=corpus.tokenizer.with_suppressed_ids(message["suppressed"]))
    control, model = Control(), _uninitialized(GPTConfig(**message["model"]))
    prepare_model(model, training)
    if is_child():
        Thread(target=_stop_with_launcher, args=[control], daemon=True).start()
    job = Share(model=model, corpus=corpus, config=training, resume=message["resume"])
    with signals_as_requests(control):
        for _ in train_job(job, control, world):
            pass


def _stop_with_launcher(control: "Control") -> None:
    """Requests a stop when the launcher has ended: it keeps the standard input of this process open, and is silent."""
    os.read(0, 1)
    control.stop = True


def _uninitialized(config: "GPTConfig") -> "GPT":
    """A model with arbitrary weights, until those of the main process arrive."""
    import torch

    from minigpt.model.gpt import GPT

    with torch.device("meta"):
        shapes = GPT(config).state_dict()
    return GPT.from_tensors(config, {name: torch.empty_like(shape, device="cpu") for name, shape in shapes.items()})
