"""Training with several processes: starts them, shares the job of the main one, and stops all of them together.

With `--devices N` this process does not train. It starts N others with its own command line, as torchrun does, forwards
signals to them, and stops all of them if one dies.
"""

import atexit
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from minigpt.cli.options import command_line
from minigpt.cli.signals import STOPS, handling, ignore_sigterm, signals_as_requests
from minigpt.errors import CheckpointError, ConfigError, DataError, DeviceError, MinigptError, TrainingError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from minigpt.config import GPTConfig
    from minigpt.jobs.job import Job
    from minigpt.jobs.request import Request
    from minigpt.model.gpt import GPT
    from minigpt.training.distributed import World

_LAUNCHER = "MINIGPT_LAUNCHER"  # environment variable of the processes we start: the process id of the launcher
_LOST = 75  # exit code of a process that lost the connection to the others: the launcher says which one died
_EXPECTED = {0, *(128 + number for number in STOPS)}  # exit codes of a process that ended as requested
_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # on Windows SIGTERM kills
_POLL = 0.05  # seconds between two checks of the processes
_GRACE = 5.0  # seconds for a process to end, and for the cause of a lost connection to show
_STOPS_TO_KILL = 3  # this many kill the processes: a second and a third can only be Ctrl-C


@contextmanager
def joined_world(request: "Request", *, resume: bool) -> Iterator["World"]:
    """The group of processes that train together, including this one.

    If this process has to start the others, it does not train: it starts them and exits with their exit code. Only one
    process reports an error.
    Raises: ConfigError or DeviceError if this machine cannot run that number of processes.
    """
    from minigpt.training.launchers import is_launched

    if not is_launched():
        count, device = _requested_devices(request, resume)
        if count > 1:
            raise typer.Exit(_launch(count, device, request))
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # no warnings of hosts without a name for their address
    from minigpt.training.distributed import ProcessLostError
    from minigpt.training.process_group import init_world
    from minigpt.training.rendezvous import MainFailedError

    try:
        world = init_world(_described(request, resume=resume))
    except MainFailedError as error:
        raise typer.Exit(1) from error
    try:
        with _closing(world), world.translate_errors():
            _check_devices(world, request, continues(world, resume=resume))
            yield world
    except ProcessLostError as error:
        if _LAUNCHER in os.environ:
            os._exit(_LOST)  # leaving the process group can hang forever once a process has died
        ignore_sigterm()
        if world.is_main and (failure := world.failure_of_others()) is not None:
            raise TrainingError(failure) from error
        if world.is_main or not world.main_failed():
            raise
        raise typer.Exit(1) from error
    except MinigptError as error:
        if world.is_main or not world.main_failed():
            is_known = world.announce(f"failed/{world.rank}", str(error))
            if world.is_main or _LAUNCHER in os.environ or not is_known:
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


def share_job(world: "World", job: "Job") -> None:
    """Sends the main process's job to the others."""
    from minigpt.jobs.job import SharedJob

    world.announce("run", str(job.run.directory))
    world.broadcast_object(SharedJob.of(job).to_dict())


def train_with_main(world: "World") -> None:
    """Receives the job from the main process and trains without output, as every other process does."""
    from minigpt.data.open_corpus import open_corpus
    from minigpt.jobs.job import SharedJob
    from minigpt.planning.distillation import teacher_settings
    from minigpt.training.clock import Control
    from minigpt.training.events import Event, Finished
    from minigpt.training.fine_tuning import apply_fine_tuning
    from minigpt.training.loop import train

    with world.translate_errors():
        job = SharedJob.from_dict(world.broadcast_object(None))
    try:
        corpus = open_corpus(job.corpus)
    except DataError as error:
        raise DataError(
            f"process {world.rank + 1} of {world.size} cannot read the tokens of the text in {job.corpus}; set "
            "MINIGPT_CACHE to a folder that all machines share"
        ) from error
    model, control = _uninitialized(job.model), Control()
    apply_fine_tuning(model, job.training)
    launcher = os.environ.get(_LAUNCHER)

    def reaches_end(events: Iterator[Event]) -> bool:
        ended = False
        for event in events:
            if launcher is not None and os.getppid() != int(launcher):  # the launcher was killed
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
                train(teacher, corpus, config, resume=begun["resume"], control=control, world=world)
            ):
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


# Starting the processes.


def _requested_devices(request: "Request", resume: bool) -> tuple[int, str]:
    """The number of processes and the device: as requested now, or else as recorded in the run to resume."""
    given, training = request.options.given, request.options.training
    count, device = training.devices, training.device
    if resume and not {"devices", "device"} <= given:
        from minigpt.jobs.resume import find_run
        from minigpt.storage.run import Run

        directory = find_run(request)
        recorded = Run.open(directory).record.training if directory is not None else None
        if recorded is not None:
            count = count if "devices" in given else recorded.devices
            device = device if "device" in given else recorded.device
    return count or 1, device


def _check_devices(world: "World", request: "Request", resume: bool) -> None:
    """Raises ConfigError or DeviceError, before anything slow begins, if these processes cannot train."""
    from minigpt.training.launchers import placement

    with world.translate_errors():  # other machines need not see the folder of the run to resume
        device = world.broadcast_object(_requested_devices(request, resume)[1] if world.is_main else None)
    world.device(device)
    training = request.options.training
    if "batch_size" in request.options.given:
        world.rows(training.batch_size)
    place = placement() if training.devices else None
    if place is not None and place.local_size != training.devices:
        raise ConfigError(
            f"devices ({training.devices}) cannot be combined with {place.launcher}, which started {place.local_size} "
            "processes on this machine; give one of the two"
        )


def check_count(count: int, device: str) -> None:
    """Raises ConfigError or DeviceError if `count` processes cannot train on that device of this machine."""
    from minigpt.cores import available_cores
    from minigpt.training.process_group import local_device

    if count > 1 and local_device(device, count).type == "cpu" and count > available_cores():
        raise DeviceError(f"devices ({count}) must be at most {available_cores()}, the cores of this machine")


def _launch(count: int, device: str, request: "Request") -> int:
    """Runs this command in `count` processes on that device; returns the exit code of the main one.

    Raises: TrainingError if one of them died; typer.Exit if it has already reported its error.
    """
    from minigpt.training.rendezvous import rendezvous

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
                start_new_session=True,  # so that Ctrl-C reaches them once, from here
            )
            children.append(child)
        with _forwarding_signals(children, store, received):
            died = _wait(children, received)
    finally:
        _terminate(children)
    if died is None:
        code = children[0].returncode
        return code if code >= 0 else 128 - code
    if store.check([f"failed/{died}"]):
        raise typer.Exit(1)
    raise TrainingError(f"{_exit_of(died, children)}; {_describe_saved_state(store, count, request.checkpoints)}")


@contextmanager
def _forwarding_signals(
    children: Sequence["subprocess.Popen[bytes]"], store: "Store", received: list[int]
) -> Iterator[None]:
    """Forwards the signals of this process to the others. Before they have joined each other, any stop is SIGTERM."""

    def send(number: int) -> None:
        if os.name == "nt" and number == signal.SIGINT:
            return  # the console sends it to all of its processes
        for child in children:
            if child.poll() is None:
                child.send_signal(number)

    def stop(number: int, _: object) -> None:
        if received and number != signal.SIGINT:
            return
        received.append(number)
        joined = store.check([f"joined/{rank}" for rank in range(len(children))])
        send(_KILL if len(received) >= _STOPS_TO_KILL else number if joined else signal.SIGTERM)

    with handling(stop, lambda number, _: send(number)):
        yield


def _wait(children: Sequence["subprocess.Popen[bytes]"], received: list[int]) -> int | None:
    """Waits until all processes have ended or one has died; returns the rank of that one."""
    lost_at = None
    while True:
        codes = [child.poll() for child in children]
        died = [rank for rank, code in enumerate(codes) if code is not None and code not in (*_EXPECTED, _LOST)]
        if died and not (received and all(-(codes[rank] or 0) in (*received, signal.SIGTERM) for rank in died)):
            return died[0]
        if None not in codes:
            return codes.index(_LOST) if _LOST in codes else None
        if _LOST in codes:  # the process that died is about to be seen
            lost_at = lost_at or time.monotonic()
            if time.monotonic() - lost_at > _GRACE:
                return codes.index(_LOST)
        time.sleep(_POLL)


def _terminate(children: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Ends the processes that still run: by SIGTERM, then by SIGKILL."""
    for child in children:
        if child.poll() is None:
            child.terminate()
    until = time.monotonic() + _GRACE
    while time.monotonic() < until and any(child.poll() is None for child in children):
        time.sleep(_POLL)
    for child in children:
        child.kill()
        child.wait()


def _exit_of(died: int, children: Sequence["subprocess.Popen[bytes]"]) -> str:
    who, code = f"process {died + 1} of {len(children)}", children[died].returncode
    if code is None or code == _LOST:
        return f"{who} lost the connection to the others"
    return f"{who} was killed ({signal.Signals(-code).name})" if code < 0 else f"{who} failed (exit code {code})"


def _describe_saved_state(store: "Store", count: int, checkpoints: Path) -> str:
    """The saved state, and the command that resumes from it."""
    if not store.check(["run"]):
        return "training had not started"
    from minigpt.jobs.resume import teacher_step, weights_without_state
    from minigpt.storage.run import Run

    directory = Path(store.get("run").decode())
    try:
        run = Run.open(directory)
        progress, weights_step, step = run.last_progress(), weights_without_state(run), teacher_step(run)
    except CheckpointError as error:
        return f"what is saved cannot be read ({error})"
    if weights_step is not None:
        return (
            f"only the weights of step {weights_step:,} are saved in {directory}; continue from them with --from "
            f"{directory.name}"
        )
    saved = f"step {progress['step']:,} is saved in {directory}" if progress else "nothing was saved yet"
    if step is not None:
        saved = f"step {step:,} of the teacher is saved in {directory}"
    again = ("train", "--resume", "--name", directory.name, "--devices", str(count))
    return f"{saved}; continue with: {command_line(*again, checkpoints=checkpoints)}"
