"""How many threads compute and how they wait for each other, which depends on what other programs leave free.

torch and the C engine compute with OpenMP. Its threads wait for each other about a hundred times in a step, in loops
that keep their cores busy ("spinning"). That is fastest on a quiet machine. Beside another program, a spinning thread
often uses the core that the thread it waits for needs, and a step may take a hundred times as long. So a monitor
looks four times a second at the share of the cores that other programs use. While its mean over the last second is more
than a quarter of a core, waiting threads sleep, and decoding uses as many threads as there are free cores. Reading a
prompt keeps all threads, because they wait for each other seldom, and more threads get more of the cores. Training
tries both numbers and uses the faster one (`minigpt.shared_cores.thread_trials`).
"""

import ctypes
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import psutil
import torch

from minigpt.cgroups import free_threads
from minigpt.cores import usable_cpus
from minigpt.threads import torch_threads

_INTERVAL = 0.25  # seconds between two measurements
_MEASUREMENTS = 4  # their mean counts, so that a program that computes for a moment does not change the threads
TOLERANCE = 0.25  # cores that other programs may use while all threads compute and spin
_WAIT_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")  # if one is set, the user has chosen


class OtherPrograms:
    """Measures how many of this process's cores other programs use."""

    def __init__(self) -> None:
        self._cpus = usable_cpus()
        self._last = self._read()

    def cores(self) -> float:
        """The mean number of cores that other programs have used since the last call; 0 where it cannot be measured."""
        before, self._last = self._last, self._read()
        seconds, busy, own = (now - then for now, then in zip(self._last, before, strict=True))
        return max(0.0, (busy - own) / seconds) if seconds > 0 else 0.0

    def _read(self) -> tuple[float, float, float]:
        """Seconds so far: of the clock, in which the cores were busy, and in which this process computed."""
        try:
            each = psutil.cpu_times(percpu=True)
        except (OSError, RuntimeError, psutil.Error):  # a sandbox without /proc/stat
            each = []
        if max(self._cpus) < len(each):
            each = [each[cpu] for cpu in self._cpus]  # otherwise the list lacks some: in a container, or switched off
        busy = sum(map(_busy_seconds, each))
        return time.perf_counter(), busy, time.process_time() if each else 0.0


def _busy_seconds(times: object) -> float:
    """The seconds in which a core computed, from its times by kind; time taken by other virtual machines counts."""
    kinds = ("user", "nice", "system", "irq", "interrupt", "softirq", "dpc", "steal")  # Windows: interrupt, dpc
    return float(sum(getattr(times, kind, 0.0) for kind in kinds))


class ShortWaits:
    """Makes waiting OpenMP threads sleep almost at once, while it is on.

    Both common OpenMP runtimes stop spinning while there are more OpenMP threads than cores: GNU's then sleeps after a
    hundred rounds (its manual, GOMP_SPINCOUNT), LLVM's and Intel's yields the core. So additional threads are created,
    which only sleep. Neither runtime lets a program change this setting itself after it is loaded.
    """

    def __init__(self) -> None:
        self._parallel = _start_openmp_threads()
        self._end: threading.Event | None = None
        self._thread: threading.Thread | None = None

    @property
    def are_on(self) -> bool:
        return self._end is not None

    def turn_on(self) -> None:
        """Creates the sleeping threads, if the runtime is known and the user has not set how threads wait.

        None is created where they are too many for the container: OpenMP ends the process if it cannot start a thread.
        """
        if self.are_on or self._parallel is None or any(name in os.environ for name in _WAIT_VARIABLES):
            return
        if free_threads() <= len(usable_cpus()) + 1:
            return
        self._end = threading.Event()
        created = threading.Event()
        self._thread = threading.Thread(target=self._hold, args=(self._parallel, created, self._end), daemon=True)
        self._thread.start()
        created.wait()

    def turn_off(self) -> None:
        """Ends the sleeping threads, so that waiting threads spin again."""
        if self._end is None or self._thread is None:
            return
        self._end.set()
        self._thread.join()
        self._end = self._thread = None

    @staticmethod
    def _hold(parallel: Callable[[int], None], created: threading.Event, end: threading.Event) -> None:
        parallel(len(usable_cpus()) + 1)  # OpenMP keeps them for this thread's next parallel region, and until it ends
        created.set()
        end.wait()


@cache
def _start_openmp_threads() -> Callable[[int], None] | None:
    """A function that runs nothing in that many OpenMP threads; None if this process has no known OpenMP."""
    try:
        openmp = ctypes.CDLL(None)
        run, nothing = openmp.GOMP_parallel, openmp.omp_get_thread_num
    except (AttributeError, OSError, TypeError):  # Windows and macOS
        return None
    run.restype = None
    run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    function = ctypes.cast(nothing, ctypes.c_void_p)
    return lambda count: run(function, None, count, 0)


class LoadMonitor:
    """Measures what other programs use, and from it sets how threads wait and how many compute."""

    def __init__(
        self,
        threads: int,
        *,
        others: Callable[[], float] | None = None,
        cores: int | None = None,
        waits: ShortWaits | None = None,
    ) -> None:
        self.threads = threads  # of this process while the machine is quiet
        self._others = others or OtherPrograms().cores
        self._cores = cores or len(usable_cpus())
        self._waits = waits or ShortWaits()
        self._used: deque[float] = deque(maxlen=_MEASUREMENTS)

    @property
    def is_busy(self) -> bool:
        """Whether other programs need cores that this process's threads would use."""
        return self.threads > 1 and self._free_cores < min(self.threads, self._cores) - TOLERANCE

    @property
    def _free_cores(self) -> float:
        return self._cores - sum(self._used) / max(1, len(self._used))

    def thread_count(self, most: int) -> int:
        """The number of threads to compute with, at most `most` and at least 1."""
        return max(1, min(most, int(self._free_cores + 0.5))) if self.is_busy else most

    @contextmanager
    def limited_threads(self) -> Iterator[None]:
        """A context in which torch computes with `thread_count` threads."""
        with torch_threads(self.thread_count(torch.get_num_threads())):
            yield

    def measure(self) -> None:
        """Measures once, and makes waiting threads sleep or spin accordingly."""
        self._used.append(self._others())
        if self.is_busy:
            self._waits.turn_on()
        else:
            self._waits.turn_off()

    def run(self) -> None:
        """Measures until the process ends; seldom while it does not compute."""
        while True:
            computed = time.process_time()
            time.sleep(_INTERVAL)
            self.measure()
            if not self.is_busy and time.process_time() - computed < _INTERVAL / 10:
                time.sleep(2 * _INTERVAL)


_monitor: LoadMonitor | None = None
_thread: threading.Thread | None = None


def watch_load(threads: int) -> LoadMonitor:
    """The process's monitor, which runs in the background from the first call on.

    `threads` is the number of this process while the machine is quiet; the highest that was given counts.
    """
    global _monitor, _thread
    if _monitor is None:
        _monitor = LoadMonitor(threads)
    _monitor.threads = max(_monitor.threads, threads)
    if threads > 1 and (_thread is None or not _thread.is_alive()):  # a forked process has no threads
        _thread = threading.Thread(target=_monitor.run, daemon=True, name="minigpt load monitor")
        _thread.start()
    return _monitor
