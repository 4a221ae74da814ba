"""Tries how many threads compute a training step faster beside other programs."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import mean
from typing import Any

import torch

from minigpt.config import TrainConfig
from minigpt.shared_cores.load_monitor import LoadMonitor, watch_load
from minigpt.threads import torch_threads
from minigpt.training.step_parts import StepParts

_TRIAL = 1.0  # seconds of computing with a number of threads, at least, before it is compared with another
_VALIDITY = 40  # how long the result of two trials is used, in durations of the slower trial


class ThreadTrials:
    """Beside other programs, tries all threads and one for each free core, and uses the faster number.

    Which is faster depends on whether the system shares the cores between sessions or between threads, and on how often
    the threads wait for each other. The trials are repeated, so that the slower number takes at most a fortieth of the
    time. All computations are assumed to be equally long.
    """

    def __init__(self, load: LoadMonitor, clock: Callable[[], float] = time.perf_counter) -> None:
        self._load, self._clock = load, clock
        self._seconds: dict[bool, list[float]] = {}  # of each computation in a trial, by whether it used all threads
        self._valid_until = 0.0
        self._restart()

    @contextmanager
    def limited_threads(self) -> Iterator[None]:
        """A context in which torch computes with the number of threads that is faster, or that is being tried."""
        most = torch.get_num_threads()
        fewer = self._load.thread_count(most)
        if fewer == most:  # no other program needs the cores
            self._restart()
            yield
            return
        uses_all, started = self._uses_all(), self._clock()
        with torch_threads(most if uses_all else fewer):
            yield
        self._record(uses_all, self._clock() - started)

    def _restart(self) -> None:
        self._seconds = {False: [], True: []}

    def _ended(self, uses_all: bool) -> bool:
        return sum(self._seconds[uses_all]) >= _TRIAL

    def _uses_all(self) -> bool:
        if self._ended(True) and self._clock() >= self._valid_until:
            self._restart()
        if not self._ended(True):
            return self._ended(False)
        fewer, all_threads = (mean(self._seconds[uses_all]) for uses_all in (False, True))
        return all_threads < fewer

    def _record(self, uses_all: bool, seconds: float) -> None:
        if self._ended(True):  # the trials are over
            return
        self._seconds[uses_all].append(seconds)
        if self._ended(True):
            slower = max(self._seconds.values(), key=mean)
            self._valid_until = self._clock() + _VALIDITY * sum(slower)


def try_threads(parts: StepParts, config: TrainConfig, given: dict[str, Any]) -> None:  # noqa: ARG001
    """On a CPU, a single process with a budget in minutes tries how many threads are fastest beside other programs.

    The number of threads changes how sums are rounded, and a run with a budget in steps or epochs is to end with the
    same weights each time.
    """
    if parts.model.token_embedding.weight.device.type != "cpu" or parts.world.size > 1:
        return
    load = watch_load(torch.get_num_threads())
    if config.minutes is not None:
        parts.context = ThreadTrials(load).limited_threads
