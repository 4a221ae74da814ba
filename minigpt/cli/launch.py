"""One training run on several processes: starts them, hands the main one's job to the others, and ends them together.

Started by `--devices N`, this process trains nothing: it starts N others with its own command line, as torchrun does,
passes signals on to them, and when one of them dies ends the rest and says what is left.
"""

import atexit
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from minigpt.cli.options import command_line
from minigpt.cli.resume import resumed_directory, weights_alone
from minigpt.cli.signals import HANGUP, STOPS, handling, heeding_signals
from minigpt.errors import CheckpointError, ConfigError, DataError, DeviceError, MinigptError, TrainingError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from minigpt.cli.train_job import Job, Request
    from minigpt.model.gpt import GPT
    from minigpt.training.distributed import World

_LAUNCHER = "MINIGPT_LAUNCHER"  # in the environment of a process that we started: the launcher's process id
_LOST = 75  # the exit code of a process whose peers have gone: the launcher says which, and why
_FINE = {0, *(128 + number for number in STOPS)}  # exit codes of a process that ended as it was asked to
_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # which on Windows kills
_POLL = 0.05  # seconds between two looks at the processes
_GRACE = 5.0  # seconds that a process has to end, and that a cause has to show
_ENOUGH = 3  # signals after which nothing is waited for


@contextmanager
def world_of(request: "Request", *, resume: bool) -> Iterator["World"]:
    """The processes that train together, this one of them; where it is to start them, it does, and exits as they do.

    Whatever goes wrong inside is said by one process.
    Raises: ConfigError and DeviceError where there cannot be so many processes here.
    """
    if "WORLD_SIZE" not in os.environ:
        count, device = _devices_wanted(request, resume)
        if count > 1:
            raise typer.Exit(_launch(count, device, request))
    from minigpt.training.distributed import ProcessLostError
    from minigpt.training.process_group import init_world

    world = init_world()
    try:
        with _leaving(world):
            _check_devices(world, request, resume)
            yield world
    except ProcessLostError as error:
        if _LAUNCHER in os.environ:
            os._exit(_LOST)  # at once: to take leave of who has gone can take for ever
        if world.is_main or not world.main_failed():
            raise
        raise typer.Exit(1) from error
    except MinigptError as error:
        if world.is_main or not world.main_failed():
            world.announce(f"failed/{world.rank}")
            raise
        raise typer.Exit(1) from error
    except KeyboardInterrupt as interrupt:
        if world.is_main:
            raise
        raise typer.Exit(128 + signal.SIGINT) from interrupt


@contextmanager
def _leaving(world: "World") -> Iterator[None]:
    """Takes leave of the other processes at an end that all come to. One that fails only goes, once it has said why:
    NCCL would have it wait for work that the others never join, and torch aborts a process that ends without leave."""
    try:
        yield
    except (typer.Exit, BrokenPipeError):  # a stop that was asked for, or a result that nobody reads
        world.close()
        raise
    except BaseException as error:
        if world.size > 1:
            atexit.register(os._exit, 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1)
        raise
    world.close()


def lead(world: "World", job: "Job") -> None:
    """Hands the main process's job to the others, who know nothing until then."""
    world.announce("run", str(job.run.directory))
    world.broadcast_object(
        {
            "model": job.model.config.to_dict(),
            "corpus": str(job.corpus.path.absolute()),
            "training": job.config.to_dict(),
            "resume": job.resume,
        }
    )


def follow(world: "World") -> None:
    """What every process but the main one does: it takes the job over, and trains without a word."""
    from minigpt.config import GPTConfig, TrainConfig
    from minigpt.data.corpus import Corpus
    from minigpt.training.clock import Control
    from minigpt.training.loop import train

    with world.translate_errors():
        job = world.broadcast_object(None)
    try:
        corpus = Corpus.load(job["corpus"])
    except DataError as error:
        raise DataError(
            f"process {world.rank + 1} of {world.size} does not see the text's tokens in {job['corpus']}; let "
            "MINIGPT_CACHE be a folder that all machines share"
        ) from error
    model, control = _blank(GPTConfig(**job["model"])), Control()
    config = TrainConfig(**job["training"])
    launcher = os.environ.get(_LAUNCHER)
    with heeding_signals(control):
        for _ in train(model, corpus, config, resume=job["resume"], control=control, world=world):
            if launcher is not None and os.getppid() != int(launcher):  # it was killed: nobody else would end us
                control.stop = True


def _blank(config: Any) -> "GPT":
    """A model whose weights are whatever lies in memory, until the main process's come."""
    import torch

    from minigpt.model.gpt import GPT

    with torch.device("meta"):
        shapes = GPT(config).state_dict()
    return GPT.from_tensors(config, {name: torch.empty_like(shape, device="cpu") for name, shape in shapes.items()})


# Starting.


def _devices_wanted(request: "Request", resume: bool) -> tuple[int, str]:
    """How many processes were asked for and on which device: now or, where a run goes on, when it was begun."""
    wanted = dict(request.given)
    if resume and not {"devices", "device"} <= wanted.keys() and (directory := resumed_directory(request)) is not None:
        from minigpt.storage.run import Run

        if (training := Run.open(directory).record.training) is not None:
            wanted = {"devices": training.devices, "device": training.device} | wanted
    return wanted.get("devices") or 1, wanted.get("device") or "auto"


def _check_devices(world: "World", request: "Request", resume: bool) -> None:
    """Raises ConfigError or DeviceError, before anything long is begun, where so many processes cannot train."""
    with world.translate_errors():  # other machines need not see the folder of the run that goes on
        device = world.broadcast_object(_devices_wanted(request, resume)[1] if world.is_main else None)
    world.device(device)
    if "batch_size" in request.given:
        world.rows(request.given["batch_size"])
    wanted, started = request.given.get("devices"), os.environ.get("LOCAL_WORLD_SIZE")
    if wanted and started and int(started) != wanted:
        raise ConfigError(
            f"devices ({wanted}) contradicts the {started} processes that torchrun has started on this machine; "
            "leave one of the two out"
        )


def check_count(count: int, device: str) -> None:
    """Raises ConfigError or DeviceError where so many processes cannot train on that device of this machine."""
    from minigpt.training.process_group import available_cores, local_device

    if count > 1 and local_device(device, count).type == "cpu" and count > available_cores():
        raise DeviceError(f"devices ({count}) must be at most {available_cores()}, the cores of this machine")


def _launch(count: int, device: str, request: "Request") -> int:
    """Runs this very command in so many processes on that device; returns the exit code of the main one.

    Raises: TrainingError where one of them died; typer.Exit where it has said itself why.
    """
    from minigpt.training.process_group import rendezvous

    check_count(count, device)
    store, environments = rendezvous(count)
    command = [sys.executable, *sys.orig_argv[1:]]
    children: list[subprocess.Popen[bytes]] = []
    received: list[int] = []
    try:
        for rank, environment in enumerate(environments):
            child = subprocess.Popen(
                command,
                env={**os.environ, **environment, _LAUNCHER: str(os.getpid()), "TORCH_CPP_LOG_LEVEL": "ERROR"},
                stdin=None if rank == 0 else subprocess.DEVNULL,
                start_new_session=True,  # so that Ctrl-C comes to them once, from here
            )
            children.append(child)
        with _passing_on(children, store, received):
            died = _watch(children, received)
    finally:
        _end(children)
    if died is None:
        code = children[0].returncode
        return code if code >= 0 else 128 - code
    if store.check([f"failed/{died}"]):
        raise typer.Exit(1)
    raise TrainingError(f"{_how(died, children)}; {_what_is_left(store, count, request)}")


@contextmanager
def _passing_on(children: Sequence["subprocess.Popen[bytes]"], store: "Store", received: list[int]) -> Iterator[None]:
    """Sends the processes what is sent to this one; those that have not met yet only know how to end."""

    def send(number: int) -> None:
        if os.name == "nt" and number == signal.SIGINT:
            return  # the console sends it to all of its processes
        for child in children:
            if child.poll() is None:
                child.send_signal(number)

    def stop(number: int, _: object) -> None:
        if received and number == HANGUP:
            return
        received.append(number)
        have_met = store.check([f"joined/{rank}" for rank in range(len(children))])
        send(_KILL if len(received) >= _ENOUGH else number if have_met else signal.SIGTERM)

    with handling(stop, lambda number, _: send(number)):
        yield


def _watch(children: Sequence["subprocess.Popen[bytes]"], received: list[int]) -> int | None:
    """Waits until all processes have ended, or one has died; returns the number of that one, from 0."""
    lost_at = None
    while True:
        codes = [child.poll() for child in children]
        died = [rank for rank, code in enumerate(codes) if code is not None and code not in (*_FINE, _LOST)]
        if died and not (received and all(-(codes[rank] or 0) in (*received, signal.SIGTERM) for rank in died)):
            return died[0]
        if None not in codes:
            return codes.index(_LOST) if _LOST in codes else None
        if _LOST in codes:  # whom it has lost is about to show
            lost_at = lost_at or time.monotonic()
            if time.monotonic() - lost_at > _GRACE:
                return codes.index(_LOST)
        time.sleep(_POLL)


def _end(children: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Ends the processes that still run, kindly first."""
    for child in children:
        if child.poll() is None:
            child.terminate()
    until = time.monotonic() + _GRACE
    while time.monotonic() < until and any(child.poll() is None for child in children):
        time.sleep(_POLL)
    for child in children:
        child.kill()
        child.wait()


def _how(died: int, children: Sequence["subprocess.Popen[bytes]"]) -> str:
    who, code = f"process {died + 1} of {len(children)}", children[died].returncode
    if code is None or code == _LOST:
        return f"{who} has lost the connection to the others"
    return f"{who} was killed ({signal.Signals(-code).name})" if code < 0 else f"{who} has failed (exit code {code})"


def _what_is_left(store: "Store", count: int, request: "Request") -> str:
    """Which state is kept, and the command to go on with."""
    if not store.check(["run"]):
        return "training had not begun"
    from minigpt.storage.run import Run

    directory = Path(store.get("run").decode())
    progress = alone = None
    with suppress(CheckpointError):
        run = Run.open(directory)
        progress, alone = run.last_progress(), weights_alone(run)
    if alone is not None:
        return (
            f"only the weights of step {alone:,} in {directory} are kept; go on from them with --from {directory.name}"
        )
    kept = f"the state of step {progress['step']:,} in {directory} is kept" if progress else "nothing was saved yet"
    again = ("train", "--resume", "--name", directory.name, "--devices", str(count))
    return f"{kept}; go on with: {command_line(*again, checkpoints=request.checkpoints)}"
