"""`minigpt train --devices N` as users see it: real processes, signals, and the message when one of them dies."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import typer
from click.testing import Result
from torch.distributed import FileStore

from minigpt.cores import available_cores
from minigpt.distributed.joined_world import joined_world
from minigpt.distributed.launch import LOST, _cause
from minigpt.distributed.process_group import JoinedWorld
from minigpt.distributed.rendezvous import group_store
from minigpt.errors import ConfigError, TrainingError
from minigpt.run_options import Request
from minigpt.storage.run import Run

CHECKPOINTS = Path("checkpoints")
LONG = ["train", "fox.txt", "--steps", "100000", "--patience", "0", "--sample-every", "0"]
needs_two_cores = pytest.mark.skipif(available_cores() < 2, reason="one core is one process")
needs_proc = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are found in /proc")


class Launched:
    """A command that runs, and the processes it has started."""

    def __init__(self, arguments: list[str], here: Path, *before: str) -> None:
        self.here = here
        self.errors = here / "stderr.txt"
        with self.errors.open("w") as errors, (here / "stdout.txt").open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *before, "minigpt", *arguments],
                cwd=here,
                env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120"},
                stdout=output,
                stderr=errors,
            )

    def pids(self) -> dict[int, int]:
        """The process ids of the processes that train, by their rank."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                environment = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
                rank = next((line[5:] for line in environment if line.startswith("RANK=")), None)
                if rank is not None and f"MINIGPT_CACHE={self.here / 'cache'}" in environment:
                    found[int(rank)] = int(folder.name)
        return found

    def until(self, reached: Callable[[], object]) -> None:
        """Waits until `reached()` is true, while the command runs."""
        end = time.monotonic() + 120
        while not reached():
            assert self.process.poll() is None, self.stderr()
            assert time.monotonic() < end, self.stderr()
            time.sleep(0.05)

    def stderr(self) -> str:
        return self.errors.read_text()

    def end(self) -> int:
        return self.process.wait(timeout=60)


@pytest.fixture
def launch(here: Path) -> Iterator[Callable[..., Launched]]:
    """Starts `python -m minigpt` with these arguments, here."""
    started: list[Launched] = []

    def start(arguments: list[str], *before: str) -> Launched:
        started.append(Launched(arguments, here, *before))
        return started[-1]

    yield start
    for command in started:
        for pid in [command.process.pid, *command.pids().values()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        command.process.wait()


def saved(here: Path) -> int:
    """The step of the last state of the run, 0 before the first."""
    progress = (
        Run.open(here / "checkpoints" / "fox").last_progress() if (here / "checkpoints" / "fox").exists() else None
    )
    return progress["step"] if progress else 0


def trains(here: Path) -> Callable[[], bool]:
    return lambda: saved(here) >= 6


# Before anything is started.


@pytest.mark.parametrize("plan", [[], ["--plan"]])
def test_more_processes_than_cores_are_refused(run: Callable[..., Result], tiny: list[str], plan: list[str]) -> None:
    result = run("train", "fox.txt", *tiny, "--devices", "999", *plan)
    assert result.exit_code == 1
    assert (
        result.stderr
        == f"minigpt: --devices (999) must be at most {available_cores()}, the cores that this process may use\n"
    )


@pytest.mark.parametrize(("flags", "cores", "expected"), [([], 1, 1), (["--devices", "2"], 4, 2)])
def test_a_plan_is_measured_with_the_threads_that_a_process_will_have(
    run: Callable[..., Result], tiny: list[str], monkeypatch: pytest.MonkeyPatch, flags: list[str], cores: int,
    expected: int,
) -> None:  # fmt: skip
    measured = set()

    def seconds_per_step(*_: object, **__: object) -> float:
        measured.add(torch.get_num_threads())
        return 0.01

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for module in ("minigpt.cores", "minigpt.threads"):
        monkeypatch.setattr(f"{module}.available_cores", lambda: cores)
    monkeypatch.setattr("minigpt.autoplan.throughput.seconds_per_step", seconds_per_step)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert run("train", "fox.txt", *tiny, "--plan", *flags).exit_code == 0
    finally:
        torch.set_num_threads(before)
    assert measured == {expected}


@pytest.fixture
def begun_on_two(run: Callable[..., Result], here: Path, tiny: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose record has `--devices 2 --device cpu`, on a machine that now has one GPU."""
    assert run("train", "fox.txt", *tiny, "--no-report").exit_code == 0
    folder = Run.open(here / "checkpoints" / "fox")
    assert folder.record.training is not None
    folder.update(training=folder.record.training.replace(devices=2))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr("minigpt.cores.available_cores", lambda: 2)


class Started:
    """A process that ended with 0; `started` has what each was started with."""

    started: ClassVar[list[dict[str, Any]]]
    returncode = 0

    def __init__(self, _: list[str], **options: Any) -> None:
        handler = signal.getsignal(signal.SIGUSR1) if hasattr(signal, "SIGUSR1") else signal.SIG_IGN
        self.started.append({**options, "SIGUSR1": handler})

    def poll(self) -> int:
        return 0

    def kill(self, *_: object) -> None: ...

    wait = terminate = kill


def test_a_resumed_run_starts_its_processes_on_its_device(
    run: Callable[..., Result], begun_on_two: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGUSR1) if hasattr(signal, "SIGUSR1") else None
    monkeypatch.setattr("minigpt.distributed.launch.subprocess.Popen", Started)
    monkeypatch.setattr(Started, "started", [], raising=False)
    assert run("train", "--resume").exit_code == 0
    assert [(each["env"]["RANK"], each["env"]["WORLD_SIZE"]) for each in Started.started] == [("0", "2"), ("1", "2")]
    assert [each["close_fds"] for each in Started.started] == [False, True]  # the main one reads the shell's pipes
    assert {each["SIGUSR1"] for each in Started.started} == {signal.SIG_IGN}  # which they do until they train
    if before is not None:
        assert signal.getsignal(signal.SIGUSR1) is before


def test_a_process_that_cannot_be_started_ends_the_others(
    run: Callable[..., Result], tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[object] = []

    class Second(Started):
        def __init__(self, command: list[str], **options: Any) -> None:
            if self.started:
                raise OSError("no more processes")
            super().__init__(command, **options)

        def kill(self, *_: object) -> None:
            killed.append(self)

    monkeypatch.setattr("minigpt.distributed.launch.subprocess.Popen", Second)
    monkeypatch.setattr("minigpt.cores.available_cores", lambda: 2)
    monkeypatch.setattr(Started, "started", [], raising=False)
    with pytest.raises(OSError, match="no more processes"):
        run("train", "fox.txt", *tiny, "--devices", "2")
    assert len(killed) == 1


def test_each_process_uses_the_device_of_the_resumed_run(
    run: Callable[..., Result], begun_on_two: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []

    class OneOfTwo(JoinedWorld):
        def device(self, name: str) -> torch.device:
            taken.append(name)
            raise ConfigError("seen")

    monkeypatch.setattr("minigpt.distributed.process_group.init_world", lambda: OneOfTwo())
    monkeypatch.setenv("WORLD_SIZE", "2")
    for flags in ([], ["--device", "cuda"]):
        assert run("train", "--resume", *flags).stderr == "minigpt: seen\n"
    assert taken == ["cpu", "cuda"]


def test_devices_are_refused_if_a_launcher_has_started_one_process(
    run: Callable[..., Result], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert run("train", "fox.txt", "--devices", "2").stderr == (
        "minigpt: --devices (2) must be 1, the number of processes that torchrun or srun started on this machine, or "
        "be omitted\n"
    )
    assert not (here / "checkpoints").exists()


def test_the_cause_of_an_end_and_what_is_saved(begun_on_two: None, here: Path) -> None:
    folder, file = here / "checkpoints" / "fox", here / "store"
    store, killed = group_store(FileStore(str(file)), 1), "process 2 of 2 was killed (SIGKILL)"

    def cause(*codes: int | None) -> str:
        return _cause(list(codes), file, 2, CHECKPOINTS)

    assert cause(LOST, -9) == f"{killed}; training had not started"
    store.set("run", str(folder))
    assert cause(None, -9).startswith(f"{killed}; step 6 is saved in ")
    assert cause(None, 1).startswith("process 2 of 2 failed (exit code 1); ")
    assert cause(LOST, LOST).startswith("process 1 of 2 lost the connection to the others; ")
    (folder / "last" / "state.safetensors").unlink()
    assert cause(LOST, -9) == (
        f"{killed}; only the weights of step 6 are saved in {folder}; continue with: "
        "minigpt train TEXT --from fox --devices 2"
    )
    store.set("failed/1", "its text is not there")
    assert cause(LOST, 1) == "its text is not there"


class Several(JoinedWorld):
    """A world of two processes that records whether it was closed."""

    size = 2

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("error", "closed", "code"),
    [
        (None, True, None),
        (typer.Exit(130), True, None),
        (BrokenPipeError(), True, None),
        (TrainingError("the memory is out"), False, 1),
        (ZeroDivisionError(), False, 1),
        (KeyboardInterrupt(), False, 130),
    ],
)
def test_a_failing_process_exits_without_waiting_for_the_others(
    monkeypatch: pytest.MonkeyPatch, error: BaseException | None, closed: bool, code: int | None
) -> None:
    world, at_exit = Several(), []
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("minigpt.distributed.process_group.init_world", lambda: world)
    monkeypatch.setattr("minigpt.distributed.joined_world.atexit.register", lambda *call: at_exit.append(call))
    raised = None
    try:
        with joined_world(Request(), resume=False):
            if error is not None:
                raise error
    except BaseException as other:
        raised = other
    assert raised is error
    assert world.closed is closed
    assert at_exit == ([] if code is None else [(os._exit, code)])


# Real processes.


@needs_two_cores
def test_an_error_is_printed_once(launch: Callable[..., Launched], tiny: list[str]) -> None:
    command = launch(["train", "nowhere.txt", *tiny, "--devices", "2"])
    assert command.end() == 1
    assert re.fullmatch(r"minigpt: nowhere.txt does not exist[^\n]*\n", command.stderr())


@needs_two_cores
@needs_proc
@pytest.mark.parametrize("rank", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_a_killed_process_ends_all_with_a_message_and_a_state_that_resumes(
    launch: Callable[..., Launched], run: Callable[..., Result], here: Path, tiny: list[str], rank: int
) -> None:
    command = launch([*LONG[:2], *tiny, *LONG[2:], "--devices", "2"])
    command.until(trains(here))
    os.kill(command.pids()[rank], signal.SIGKILL)
    assert command.end() == 1
    step = saved(here)
    *_, last = command.stderr().splitlines()
    assert last == (
        f"minigpt: process {rank + 1} of 2 was killed (SIGKILL); step {step:,} is saved in checkpoints/fox; "
        "continue with: minigpt train --resume --name fox --devices 2"
    )
    assert command.stderr().count("minigpt: ") == 1
    assert "Traceback" not in command.stderr()
    assert command.pids() == {}
    result = run("train", "--resume", "--name", "fox", "--devices", "1", "--steps", str(step + 5))
    assert result.exit_code == 0, result.stderr
    assert [line["step"] for line in Run.open(here / "checkpoints" / "fox").read_log() if "loss" in line] == list(
        range(1, step + 6)
    )


@pytest.mark.slow
@needs_two_cores
@needs_proc
@pytest.mark.parametrize(("number", "alone"), [(signal.SIGINT, False), (signal.SIGTERM, False), (signal.SIGTERM, True)])
def test_a_signal_saves_once_and_stops_all(
    launch: Callable[..., Launched], here: Path, tiny: list[str], number: signal.Signals, alone: bool
) -> None:
    command = launch([*LONG[:2], *tiny, *LONG[2:], "--eval-every", "99999", "--save-every", "99999", "--devices", "2"])
    command.until(lambda: "step 1/" in command.stderr())
    command.process.send_signal(signal.SIGUSR1)
    command.until(lambda: saved(here))
    first = saved(here)
    os.kill(command.pids()[1] if alone else command.process.pid, number)
    assert command.end() == 128 + number
    assert saved(here) > first
    assert command.stderr().count("stopped: step") == 1
    assert command.pids() == {}


@pytest.mark.slow
@needs_two_cores
@needs_proc
def test_processes_whose_launcher_was_killed_save_and_stop(
    launch: Callable[..., Launched], here: Path, tiny: list[str]
) -> None:
    command = launch([*LONG[:2], *tiny, *LONG[2:], "--save-every", "1000000", "--devices", "2"])
    command.until(trains(here))
    command.process.kill()
    end = time.monotonic() + 60
    while command.pids():
        assert time.monotonic() < end
        time.sleep(0.05)
    assert "stopped: step" in command.stderr()
    assert Run.open(here / "checkpoints" / "fox").last_progress() is not None


@pytest.mark.slow
@needs_two_cores
def test_torchrun_trains_as_our_own_launcher_does(launch: Callable[..., Launched], here: Path, tiny: list[str]) -> None:
    losses = {}
    for name, before in {"own": (), "torchrun": ("torch.distributed.run", "--nproc-per-node", "2", "-m")}.items():
        devices = [] if before else ["--devices", "2"]
        command = launch(["train", "fox.txt", *tiny, "--name", name, *devices], *before)
        assert command.end() == 0, command.stderr()
        losses[name] = [line["loss"] for line in Run.open(here / "checkpoints" / name).read_log() if "loss" in line]
    assert losses["own"] == losses["torchrun"]
    assert len(losses["own"]) == 6


@pytest.mark.slow
@needs_two_cores
def test_devices_with_torchrun_are_refused_once(launch: Callable[..., Launched], tiny: list[str]) -> None:
    command = launch(
        ["train", "fox.txt", *tiny, "--devices", "3"], "torch.distributed.run", "--nproc-per-node", "2", "-m"
    )
    assert command.end() == 1
    assert command.stderr().count("minigpt: --devices (3) must be 2, the number of processes that torchrun") == 1
