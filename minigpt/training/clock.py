"""The seconds of a run, and requests to save or stop it, as all of its processes see them."""

import time
from dataclasses import dataclass

from minigpt.training.progress import Progress
from minigpt.training.world import World


@dataclass
class Control:
    """Requests from outside, such as a signal handler or another thread: save now, or save and stop.

    Training reads them between two steps.
    """

    save: bool = False
    stop: bool = False


class Clock:
    """Measures the seconds of a run, including those before it was resumed.

    `save` and `stop` say whether any process has requested that.
    """

    def __init__(self, control: Control, world: World) -> None:
        self.control, self.world = control, world
        self.save = self.stop = False
        self.start(0.0)

    def start(self, seconds: float) -> None:
        """Starts at this number of seconds of the run."""
        self._started = time.perf_counter() - seconds

    def update(self, progress: Progress) -> None:
        """Sets `progress.seconds` to the time of this process, which is good enough for the log."""
        progress.seconds = time.perf_counter() - self._started

    def synchronize(self, progress: Progress) -> None:
        """Sets `progress.seconds` to the same time on all processes and reads the requests of all."""
        seconds = time.perf_counter() - self._started
        save, self.control.save = self.control.save, False  # a request that arrives later is read the next time
        progress.seconds, save_any, stop_any = self.world.all_reduce_max([seconds, save, self.control.stop])
        self.save, self.stop = self.save or bool(save_any), bool(stop_any)
