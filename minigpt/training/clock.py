"""The seconds of a run, and requests to save or stop it, as all of its processes see them."""

import time
from dataclasses import dataclass

from minigpt.training.distributed import World
from minigpt.training.progress import Progress


@dataclass
class Control:
    """Requests that training looks at between two steps: to save now, or to save and stop."""

    save: bool = False
    stop: bool = False


class Clock:
    """The clock goes on from the seconds of the run that `set` gives; `save` and `stop` are requests of any process."""

    def __init__(self, control: Control, world: World) -> None:
        self.control, self.world = control, world
        self.save = self.stop = False
        self.set(0.0)

    def set(self, seconds: float) -> None:
        """Sets the clock to so many seconds of the run."""
        self._began = time.perf_counter() - seconds

    def read_local(self, progress: Progress) -> None:
        """Notes this process's own time, for the log; whatever is decided by has been agreed on first."""
        progress.seconds = time.perf_counter() - self._began

    def read(self, progress: Progress) -> float:
        """The seconds that the run has taken so far, those before it was resumed included, as all processes note them;
        hears of requests too."""
        gone = time.perf_counter() - self._began
        asked, self.control.save = self.control.save, False  # a request that comes from here on is heard next time
        progress.seconds, save, stop = self.world.all_reduce_max([gone, asked, self.control.stop])
        self.save, self.stop = self.save or bool(save), bool(stop)
        return progress.seconds
