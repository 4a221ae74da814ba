"""The worker: the one thread that owns the batches and runs their steps."""

import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence

from minigpt.device import keep_freed_memory
from minigpt.errors import GenerationError, MinigptError
from minigpt.generation.batching.batch import Batch
from minigpt.generation.batching.requests import Event, Failed, GenerationRequest

Deliver = Callable[[Sequence[Event]], None]


class Worker:
    """Runs several batches in one thread, a step of each busy one in turn, and delivers their events.

    `deliver` is called in the worker's thread, at most once a step. `submit` and `cancel` may be called by any thread
    and return at once.
    """

    def __init__(self, deliver: Deliver) -> None:
        self._deliver = deliver
        self._wake = threading.Condition()
        self._commands: deque[Callable[[], None]] = deque()
        self._batches: list[Batch] = []
        self._active: dict[GenerationRequest, Batch] = {}  # used by the worker's thread only
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="minigpt batching", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        keep_freed_memory()
        self._thread.start()

    def stop(self, timeout: float = 10.0) -> None:
        """Ends the thread after its current step."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join(timeout)

    def submit(self, batch: Batch, request: GenerationRequest) -> None:
        """Adds a request to a batch; its events follow, the last of them marked."""
        self._command(lambda: self._add(batch, request))

    def cancel(self, request: GenerationRequest) -> None:
        """Drops a request before the next step; it gets no more events."""
        self._command(lambda: self._drop(request))

    def _command(self, run: Callable[[], None]) -> None:
        with self._wake:
            self._commands.append(run)
            self._wake.notify()

    # In the worker's thread

    def _run(self) -> None:
        while True:
            with self._wake:
                while not (self._commands or self._active or self._stopping):
                    self._wake.wait()
                if self._stopping:
                    return
                commands, self._commands = self._commands, deque()
            for run in commands:
                run()
            for batch in self._batches:
                if not batch.is_idle:
                    self._step(batch)

    def _add(self, batch: Batch, request: GenerationRequest) -> None:
        if batch not in self._batches:
            self._batches.append(batch)
        try:
            batch.add(request)
        except MinigptError as error:
            self._deliver([Event(request, Failed(error), is_last=True)])
        else:
            self._active[request] = batch

    def _drop(self, request: GenerationRequest) -> None:
        batch = self._active.pop(request, None)
        if batch is not None:
            batch.cancel(request)

    def _step(self, batch: Batch) -> None:
        try:
            events = batch.step()
        except Exception:  # a bug, or no memory: the requests of this batch end, the others go on
            traceback.print_exc()
            batch.clear()
            failed = Failed(GenerationError("the server failed while it generated; its terminal shows the cause"))
            lost = [request for request, owner in self._active.items() if owner is batch]
            events = [Event(request, failed, is_last=True) for request in lost]
        for event in events:
            if event.is_last:
                self._active.pop(event.request, None)
        if events:
            self._deliver(events)
