"""How many threads compute and how they wait, on a quiet machine and beside other programs."""

import itertools
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from minigpt.shared_cores import load_monitor
from minigpt.shared_cores.load_monitor import LoadMonitor, OtherPrograms, ShortWaits

TASKS = Path("/proc/self/task")
NEEDS_OPENMP = pytest.mark.skipif(
    load_monitor._start_openmp_threads() is None or any(name in os.environ for name in load_monitor._WAIT_VARIABLES),
    reason="how OpenMP's threads wait cannot be changed here",
)


def monitor(others: list[float], *, most: int, cores: int) -> LoadMonitor:
    """A monitor that has measured these numbers of cores that other programs use."""
    monitor = LoadMonitor(most, others=iter(others).__next__, cores=cores)
    for _ in others:
        monitor.measure()
    monitor._waits.turn_off()
    return monitor


@pytest.mark.parametrize(
    ("others", "most", "cores", "expected"),
    [
        ([], 8, 8, 8),  # not measured yet
        ([0.0, 0.2], 8, 8, 8),
        ([0.3], 8, 8, 8),  # busy, but all cores are free most of the time
        ([1.0], 8, 8, 7),
        ([2.4], 8, 8, 6),
        ([8.0], 8, 8, 1),
        ([1.0], 2, 2, 1),
        ([3.0], 1, 2, 1),
        ([4.0], 4, 8, 4),  # this process was given half of the machine, and another process uses the other half
        ([5.0], 4, 8, 3),
        ([0.0], 16, 8, 16),  # more threads than cores, as the user wants
        ([0.0, 0.0, 0.0, 0.9], 2, 2, 2),  # a program that computes for a quarter of a second
        ([1.0, 0.0, 1.0, 1.0], 2, 2, 1),  # a program that pauses
        ([1.0, 0.0, 0.0, 0.0, 0.0], 2, 2, 2),  # a program that has ended
    ],
)
def test_threads_leave_the_cores_that_other_programs_use(
    others: list[float], most: int, cores: int, expected: int
) -> None:
    assert monitor(others, most=most, cores=cores).thread_count(most) == expected


@pytest.mark.parametrize(("others", "expected"), [([0.0], False), ([0.2], False), ([0.3], True), ([1.0, 0.0], True)])
def test_threads_sleep_while_they_wait_beside_other_programs(others: list[float], expected: bool) -> None:
    class Waits(ShortWaits):
        on = False

        def turn_on(self) -> None:
            self.on = True

        def turn_off(self) -> None:
            self.on = False

    waits = Waits()
    measured = LoadMonitor(2, others=iter(others).__next__, cores=2, waits=waits)
    for _ in others:
        measured.measure()
    assert waits.on == expected


def test_torch_gets_its_threads_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with monitor([1.0], most=2, cores=2).limited_threads():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_load_of_other_programs_is_measured_without_the_own(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = {"now": 0.0, "own": 0.0}
    core = SimpleNamespace(user=0.0, system=0.0, idle=0.0, iowait=0.0, steal=0.0)
    monkeypatch.setattr(load_monitor, "usable_cpus", lambda: [1, 2])
    monkeypatch.setattr(load_monitor.time, "perf_counter", lambda: clock["now"])
    monkeypatch.setattr(load_monitor.time, "process_time", lambda: clock["own"])
    foreign = SimpleNamespace(user=100.0)  # a core on which this process may not run
    monkeypatch.setattr(load_monitor.psutil, "cpu_times", lambda percpu: [foreign, core, SimpleNamespace(**vars(core))])
    others = OtherPrograms()
    clock |= {"now": 2.0, "own": 1.0}
    vars(core).update(user=1.2, system=0.2, steal=0.1, idle=0.3, iowait=0.2)
    assert others.cores() == pytest.approx((2 * 1.5 - 1.0) / 2.0)
    clock |= {"now": 3.0, "own": 3.0}  # more than the system has counted yet
    assert others.cores() == 0.0


def test_all_listed_cores_count_where_the_numbers_of_the_own_ones_do_not_fit_the_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In some containers the list has only the own cores, under other numbers; some systems omit cores that are off."""
    core = SimpleNamespace(user=0.0)
    seconds = itertools.count()
    monkeypatch.setattr(load_monitor, "usable_cpus", lambda: [3, 17])
    monkeypatch.setattr(load_monitor.time, "perf_counter", lambda: float(next(seconds)))
    monkeypatch.setattr(load_monitor.time, "process_time", lambda: 0.0)
    monkeypatch.setattr(load_monitor.psutil, "cpu_times", lambda percpu: [SimpleNamespace(user=0.0), core])
    others = OtherPrograms()
    core.user = 0.75
    assert others.cores() == pytest.approx(0.75)


def test_a_busy_process_is_seen() -> None:
    others, waited = OtherPrograms(), 0
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        while others.cores() == 0.0 and waited < 100:
            time.sleep(0.1)
            waited += 1
    finally:
        process.kill()
        process.wait()
    assert waited < 100


def test_a_system_that_does_not_tell_the_load_counts_as_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> object:
        raise FileNotFoundError("/proc/stat")

    monkeypatch.setattr(load_monitor.psutil, "cpu_times", fail)
    assert OtherPrograms().cores() == 0.0


@NEEDS_OPENMP
@pytest.mark.skipif(not TASKS.is_dir(), reason="the threads of this process cannot be counted")
def test_short_waits_create_sleeping_threads_and_end_them() -> None:
    waits, before = ShortWaits(), len(list(TASKS.iterdir()))
    waits.turn_on()
    waits.turn_on()
    assert waits.are_on
    assert len(list(TASKS.iterdir())) >= before + len(load_monitor.usable_cpus()) + 1
    waits.turn_off()
    assert not waits.are_on
    assert waits._thread is None


@NEEDS_OPENMP
def test_no_threads_are_created_that_a_container_does_not_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    waits, needed = ShortWaits(), len(load_monitor.usable_cpus()) + 1
    monkeypatch.setattr(load_monitor, "free_threads", lambda: needed)
    waits.turn_on()
    assert not waits.are_on
    monkeypatch.setattr(load_monitor, "free_threads", lambda: needed + 1)
    waits.turn_on()
    assert waits.are_on
    waits.turn_off()


@pytest.mark.parametrize("variable", load_monitor._WAIT_VARIABLES)
def test_the_users_own_choice_of_waiting_stays(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "1")
    waits = ShortWaits()
    waits.turn_on()
    assert not waits.are_on
