"""Starting the processes that train together.

With `--devices N` this process does not train. It starts N others with its own command line, as torchrun does, forwards
signals to them, and stops all of them if one dies.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from minigpt.cli.signals import STOPS, handling
from minigpt.cli.train_end import how_to_resume
from minigpt.errors import CheckpointError, DeviceError, TrainingError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from minigpt.jobs.request import Request

LAUNCHER = "MINIGPT_LAUNCHER"  # environment variable of the processes we start: the process id of the launcher
LOST = 75  # exit code of a process that lost the connection to the others: the launcher says which one died
_EXPECTED = {0, *(128 + number for number in STOPS)}  # exit codes of a process that ended as requested
_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # on Windows SIGTERM kills
_POLL = 0.05  # seconds between two checks of the processes
_GRACE = 5.0  # seconds for a process to end, and for the cause of a lost connection to show
_STOPS_TO_KILL = 3  # this many kill the processes: a second and a third can only be Ctrl-C


def requested_devices(request: "Request", resume: bool) -> tuple[int, str]:
    """The number of processes and the device: as requested now, or else as recorded in the run to resume."""
    given, training = request.options.given, request.options.training
    count, device = training.devices, training.device
    if resume and not {"devices", "device"} <= given:
        from minigpt.jobs.find_run import find_run
        from minigpt.storage.run import Run

        directory = find_run(request)
        recorded = Run.open(directory).record.training if directory is not None else None
        if recorded is not None:
            count = count if "devices" in given else recorded.devices
            device = device if "device" in given else recorded.device
    return count or 1, device


def check_count(count: int, device: str) -> None:
    """Raises ConfigError or DeviceError if `count` processes cannot train on that device of this machine."""
    from minigpt.cores import available_cores
    from minigpt.training.process_group import local_device

    if count > 1 and local_device(device, count).type == "cpu" and count > available_cores():
        raise DeviceError(f"devices ({count}) must be at most {available_cores()}, the cores that this process may use")


def launch(count: int, device: str, request: "Request") -> int:
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
                env={**os.environ, **environment, LAUNCHER: str(os.getpid()), "TORCH_CPP_LOG_LEVEL": "ERROR"},
                stdin=None if rank == 0 else subprocess.DEVNULL,
                close_fds=rank != 0,  # the main process reads the text of <(…), which is open as /dev/fd/63
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
        died = [rank for rank, code in enumerate(codes) if code is not None and code not in (*_EXPECTED, LOST)]
        if died and not (received and all(-(codes[rank] or 0) in (*received, signal.SIGTERM) for rank in died)):
            return died[0]
        if None not in codes:
            return codes.index(LOST) if LOST in codes else None
        if LOST in codes:  # the process that died is about to be seen
            lost_at = lost_at or time.monotonic()
            if time.monotonic() - lost_at > _GRACE:
                return codes.index(LOST)
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
    if code is None or code == LOST:
        return f"{who} lost the connection to the others"
    return f"{who} was killed ({signal.Signals(-code).name})" if code < 0 else f"{who} failed (exit code {code})"


def _describe_saved_state(store: "Store", count: int, checkpoints: Path) -> str:
    """The saved state, and the command that resumes from it."""
    if not store.check(["run"]):
        return "training had not started"
    from minigpt.storage.run import Run

    try:
        run = Run.open(Path(store.get("run").decode()))
        saved, command = how_to_resume(run, checkpoints, "--devices", str(count))
    except CheckpointError as error:
        return f"what is saved cannot be read ({error})"
    return f"{saved}; continue with: {command}"
