"""The event hub: gives what the worker's thread generates to the tasks that answer clients."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from minigpt.errors import ConfigError, MinigptError
from minigpt.generation.streaming import Piece
from minigpt.server.api_error import ApiError
from minigpt.server.batching.requests import Event, Failed, GenerationRequest
from minigpt.server.batching.worker import Worker
from minigpt.server.metrics import Metrics
from minigpt.server.serve_config import ServeConfig
from minigpt.server.served_model import Models, ServedModel

Steps = AsyncIterator[list[Event]]
Queue = asyncio.Queue[list[Event] | ApiError]


class EventHub:
    """Submits requests to the worker and passes on their events. All methods run in the event loop's thread."""

    def __init__(self, config: ServeConfig, models: Models) -> None:
        self.config, self.metrics = config, Metrics(models, lambda: self.n_texts)
        self.is_stopping = False
        self._worker = Worker(self._deliver)
        self._mean_seconds = 0.0  # of the last requests
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queues: dict[GenerationRequest, Queue] = {}

    def start(self) -> None:
        """Starts the worker's thread."""
        self._loop = asyncio.get_running_loop()
        self._worker.start()

    async def stop(self) -> None:
        """Ends the worker's thread."""
        self.end_requests()
        await asyncio.to_thread(self._worker.stop)

    def refuse(self) -> None:
        """Refuses new requests from now on."""
        self.is_stopping = True

    def end_requests(self) -> None:
        """Ends all running requests with an error that says that the server shuts down."""
        for queue in set(self._queues.values()):
            queue.put_nowait(_shutting_down())

    @property
    def n_texts(self) -> int:
        """How many texts are being generated or wait for their turn."""
        return sum(request.n_texts for request in self._queues)

    @asynccontextmanager
    async def running(self, model: ServedModel, requests: Sequence[GenerationRequest]) -> AsyncIterator[Steps]:
        """Runs requests while the context is open and gives their events, step by step; then cancels unfinished ones.

        Raises: ApiError if the queue is full or the server is shutting down; events raise it for a failed request.
        """
        self.check_accepts(sum(request.n_texts for request in requests))
        queue: Queue = asyncio.Queue()
        for request in requests:
            self._queues[request] = queue
            self._worker.submit(model.batch, request)
        try:
            yield self._events(queue, len(requests))
        finally:
            for request in requests:
                if self._queues.pop(request, None) is not None:
                    self._worker.cancel(request)

    def check_accepts(self, n_texts: int) -> None:
        """Raises: ApiError if the queue has no room for so many texts more, or the server is shutting down."""
        if self.is_stopping:
            raise _shutting_down()
        if self.n_texts + n_texts <= self.config.max_batch + self.config.max_queue:
            return
        turns = self.n_texts / self.config.max_batch
        seconds = min(60, max(1, math.ceil(self._mean_seconds * turns)))
        raise ApiError(
            429,
            f"{self.n_texts} texts are being generated or wait for their turn; try again in about {seconds} s",
            code="queue_full",
            headers={"Retry-After": str(seconds)},
        )

    async def _events(self, queue: Queue, unfinished: int) -> Steps:
        begin = last = time.perf_counter()
        durations = self.metrics.first_token
        while unfinished:
            step = await queue.get()
            if isinstance(step, ApiError):
                raise step
            if any(isinstance(event.content, Piece) for event in step):
                now = time.perf_counter()
                durations.observe(now - last)
                durations, last = self.metrics.between_tokens, now
            for event in step:
                if isinstance(event.content, Failed):
                    raise _failure(event.content.error)
                if event.is_last:
                    unfinished -= 1
                    self._queues.pop(event.request, None)
            yield step
        seconds = time.perf_counter() - begin
        self.metrics.seconds.observe(seconds)
        self._mean_seconds += 0.1 * (seconds - self._mean_seconds) if self._mean_seconds else seconds

    def _deliver(self, events: Sequence[Event]) -> None:
        """Called in the worker's thread."""
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._dispatch, events)

    def _dispatch(self, events: Sequence[Event]) -> None:
        steps: dict[Queue, list[Event]] = {}
        for event in events:
            if event.request in self._queues:
                steps.setdefault(self._queues[event.request], []).append(event)
        for queue, step in steps.items():
            queue.put_nowait(step)


def _shutting_down() -> ApiError:
    return ApiError(503, "the server is shutting down", code="stopped")


def _failure(error: MinigptError) -> ApiError:
    """The error of a request that could not be generated: its settings leave no token, or the model is damaged."""
    if isinstance(error, ConfigError):
        return ApiError(400, str(error))
    return ApiError(500, str(error), code="generation_failed")
