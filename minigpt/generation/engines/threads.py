"""The number of threads of a decode step, which depends on what else the machine computes."""

import sys
from collections.abc import Callable

if sys.platform == "win32":

    def _displacements() -> int:
        return 0  # Windows does not count them
else:
    import resource

    def _displacements() -> int:
        """How often the system has given a processor of this process to another program while it was computing."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


_WINDOW = 8  # steps in one measurement
_HOLD, _MAX_HOLD = 8, 64  # measurements between two trials, doubled after each that changed nothing
_DISTURBED = 4  # displacements in a measurement that show that other programs compute


class ThreadCount:
    """Chooses between all threads and one thread, by the time of the steps, while other programs compute.

    The threads wait for each other about a hundred times in a step. If other programs displace one of them, all of them
    wait, and one thread alone may be faster. Both are tried only then; a quiet machine always has all threads.
    """

    def __init__(self, displacements: Callable[[], int] = _displacements) -> None:
        self._displacements = displacements
        self._use_one = False
        self._in_trial = False
        self._seconds: list[float] = []
        self._before_trial = 0.0  # seconds per step
        self._measurements = 0  # since the last trial
        self._hold = _HOLD
        self._displaced = displacements()

    def choose(self, threads: int) -> int:
        """The number of threads of the next step, of at most `threads`."""
        return 1 if self._use_one else threads

    def record(self, seconds: float) -> None:
        """Learns how long a step took with the number of threads that was chosen for it."""
        self._seconds.append(seconds)
        if len(self._seconds) < _WINDOW:
            return
        mean = sum(self._seconds) / _WINDOW
        self._seconds.clear()
        displaced, self._displaced = self._displaced, self._displacements()
        if self._in_trial:
            self._in_trial, self._measurements = False, 0
            changed = mean < self._before_trial
            self._hold = _HOLD if changed else min(2 * self._hold, _MAX_HOLD)
            if not changed:
                self._use_one = not self._use_one
            return
        self._measurements += 1
        disturbed = self._use_one or self._displaced - displaced >= _DISTURBED
        if disturbed and (self._measurements >= self._hold or self._before_trial == 0):
            self._in_trial, self._before_trial, self._use_one = True, mean, not self._use_one
