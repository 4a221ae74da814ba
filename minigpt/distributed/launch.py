"""Starting the processes that train together.

With `--devices N` this process does not train. It starts N others with its own command line, as torchrun does, passes
signals on, and ends all of them if one dies. It imports torch only then, so that the others start a second earlier.
"""

import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from minigpt.cli.signals import STOPS, handling
from minigpt.cli.train_end import how_to_resume
from minigpt.errors import CheckpointError, TrainingError

if TYPE_CHECKING:
    from minigpt.run_options import Request

LOST = 75  # exit code of a process that lost the connection to the others: the launcher says which one died
_EXPECTED = {0, *(128 + number for number in STOPS)}  # exit codes of a process that ended as requested
_POLL = 0.05  # seconds between two checks of the processes
_GRACE = 5.0  # seconds for a process to end after another one has failed
_CTRL_C_TO_KILL = 3
_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # on Windows SIGTERM kills


def requested_devices(request: "Request", resume: bool) -> tuple[int, str]:
    """The number of processes and the device: as requested now, or else as recorded in the run to resume."""
    given, training = request.options.given, request.options.training
    count, device = training.n_processes, training.device
    if resume and not {"devices", "device"} <= given:
        from minigpt.runs.find_run import find_run
        from minigpt.storage.run import Run

        directory = find_run(request)
        recorded = Run.open(directory).record.training if directory is not None else None
        if recorded is not None:
            count = count if "devices" in given else recorded.n_processes
            device = device if "device" in given else recorded.device
    return count or 1, device


def launch(count: int, device: str, request: "Request") -> int:
    """Runs this command in `count` processes on that device; returns the exit code of the main one.

    Raises: DeviceError or ConfigError before they start; TrainingError if one of them died.
    """
    from minigpt.cores import available_cores
    from minigpt.distributed.launchers import environment_of

    if count > available_cores():  # fewer report a wrong device themselves
        from minigpt.distributed.devices import check_count

        check_count(count, device)
    children: list[subprocess.Popen[bytes]] = []
    signals: list[int] = []

    def stop(number: int, _: object) -> None:
        if number == signal.SIGINT or not signals:
            signals.append(number)
            pass_on(_KILL if signals.count(signal.SIGINT) >= _CTRL_C_TO_KILL else number)

    def pass_on(number: int, _: object = None) -> None:
        """Sends a signal to the main process. The others save and end at the same step."""
        if os.name != "nt" or number != signal.SIGINT:  # which Windows' console sends to all of its processes
            children[0].send_signal(number)

    with tempfile.TemporaryDirectory(prefix="minigpt-", ignore_cleanup_errors=True) as folder:
        store = Path(folder) / "store"
        try:
            for rank in range(count):
                child = subprocess.Popen(
                    [sys.executable, *sys.orig_argv[1:]],
                    env=os.environ | environment_of(rank, count, store),
                    stdin=None if rank == 0 else subprocess.PIPE,  # they notice that it is closed if this process dies
                    close_fds=rank != 0,  # the main process reads the text of <(…), which is open as /dev/fd/63
                    start_new_session=True,  # so that Ctrl-C reaches the main process once, from here
                )
                children.append(child)
            with handling(stop, pass_on):
                codes = _wait(children)
        finally:
            _terminate(children)
        code = codes[0]
        if code is not None and code != LOST and (code >= 0 or -code in signals):  # it has reported its end
            return abs(code) + (128 if code < 0 else 0)
        raise TrainingError(_cause(codes, store, count, request.checkpoints))


def _wait(children: list["subprocess.Popen[bytes]"]) -> list[int | None]:
    """Waits for the main process; returns the exit codes then, None for those that still run.

    Once a process has failed, the main one has some seconds to report that; once it has lost the others, they have.
    """
    until = math.inf
    while True:
        codes = [child.poll() for child in children]
        if None not in codes or codes[0] not in (None, LOST) or time.monotonic() > until:
            return codes
        if any(code not in (None, *_EXPECTED) for code in codes):
            until = min(until, time.monotonic() + _GRACE)
        time.sleep(_POLL)


def _terminate(children: list["subprocess.Popen[bytes]"]) -> None:
    """Ends the processes that still run: by SIGTERM, then by SIGKILL."""
    for child in children:
        child.terminate()
    until = time.monotonic() + _GRACE
    for child in children:
        with suppress(subprocess.TimeoutExpired):
            child.wait(max(0.0, until - time.monotonic()))
        child.kill()
        child.wait()


def _cause(codes: list[int | None], file: Path, count: int, checkpoints: Path) -> str:
    """What ended the processes, which state is saved, and the command that resumes from it."""
    from torch._C._distributed_c10d import FileStore

    from minigpt.distributed.rendezvous import group_store
    from minigpt.storage.run import Run

    store = group_store(FileStore(str(file)), 1)
    died = next((rank for rank, code in enumerate(codes) if code not in (None, LOST, *_EXPECTED)), None)
    died = codes.index(LOST) if died is None else died
    if store.check([f"failed/{died}"]):
        return store.get(f"failed/{died}").decode()
    cause, code = f"process {died + 1} of {count} ", codes[died]
    if code == LOST:
        cause += "lost the connection to the others"
    elif code is not None:
        cause += f"was killed ({signal.Signals(-code).name})" if code < 0 else f"failed (exit code {code})"
    if not store.check(["run"]):
        return f"{cause}; training had not started"
    try:
        run = Run.open(Path(store.get("run").decode()))
        saved, command = how_to_resume(run, checkpoints, "--devices", str(count))
    except CheckpointError as error:
        return f"{cause}; what is saved cannot be read ({error})"
    return f"{cause}; {saved}; continue with: {command}"
