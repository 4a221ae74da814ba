"""The worker: the one thread that owns the batches and runs their steps."""

import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

from minigpt.device import keep_freed_memory
from minigpt.errors import GenerationError, MinigptError
from minigpt.server.batching.batch import Batch
from minigpt.server.batching.requests import Event, Failed, GenerationRequest

Deliver = Callable[[Sequence[Event]], None]


class Worker:
    """Runs several batches in one thread, a step of each busy one in turn, and delivers their events.

    `deliver` is called in the worker's thread, at most once a step. `submit` and `cancel` may be called by any thread
    and return at once.
    """

    def __init__(self, deliver: Deliver) -> None:
        self._deliver = deliver
        self._commands: SimpleQueue[Callable[[], None] | None] = SimpleQueue()  # None ends the thread
        self._batches: list[Batch] = []
        self._active: dict[GenerationRequest, Batch] = {}  # used by the worker's thread only
        self._thread = threading.Thread(target=self._run, name="minigpt batching", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        keep_freed_memory()
        self._thread.start()

    def stop(self, timeout: float = 10.0) -> None:
        """Ends the thread after its current step."""
        self._commands.put(None)
        self._thread.join(timeout)

    def submit(self, batch: Batch, request: GenerationRequest) -> None:
        """Adds a request to a batch; its events follow, the last of them marked."""
        self._commands.put(lambda: self._add(batch, request))

    def cancel(self, request: GenerationRequest) -> None:
        """Drops a request before the next step; it gets no more events."""
        self._commands.put(lambda: self._drop(request))

    # In the worker's thread

    def _run(self) -> None:
        while True:
            with suppress(Empty):  # while there is work, it does not wait for more
                while (run := self._commands.get(block=not self._active)) is not None:
                    run()
                return
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
