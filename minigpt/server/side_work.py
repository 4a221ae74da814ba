"""Runs what is computed beside generation: inspections in threads that end with their work, the rest in small pools.

OpenMP keeps a team of threads for every thread that has computed with it, and counts them all. Once they are more than
the cores, they sleep at once where they waited for each other in a loop, and a step takes twice as long. In a server
only the worker's thread may therefore live on.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from minigpt.server.api_error import ApiError, shutting_down

_MOST_WAITING = 8
_RETRY = {"Retry-After": "2"}

T = TypeVar("T")


class StoppedError(Exception):
    """Ends work whose client has left."""


async def in_own_thread(function: Callable[[], T], ended: Callable[[], None] = lambda: None) -> T:
    """What the function returns, computed in a thread that ends with it.

    `ended` is called in the event loop's thread once the function has ended, which may be long after a cancellation.
    """
    loop = asyncio.get_running_loop()
    executor = ThreadPoolExecutor(1, thread_name_prefix="minigpt side work")

    def report(_: Future[T]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the server has ended
            loop.call_soon_threadsafe(ended)

    try:
        future = executor.submit(function)
        future.add_done_callback(report)
        return await asyncio.wrap_future(future)
    finally:
        executor.shutdown(wait=False, cancel_futures=True)


class Pool:
    """One kind of work on texts, `kind`, in its own thread, so that it delays no other; `most` pieces at once."""

    def __init__(self, kind: str, most: int) -> None:
        self._kind, self._most = kind, most
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"minigpt {kind}")
        self._waiting = 0

    async def run(self, function: Callable[[], T]) -> T:
        """What the function returns. It is not begun if its client has left before its turn.

        Raises: ApiError if too much work is waiting.
        """
        if self._waiting >= self._most:
            message = f"{self._waiting} requests are waiting for {self._kind}; try again in about 2 s"
            raise ApiError(429, message, code="queue_full", headers=_RETRY)
        loop = asyncio.get_running_loop()

        def end(_: Future[T]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the server has ended
                loop.call_soon_threadsafe(self._end)

        self._waiting += 1
        future = self._executor.submit(function)
        future.add_done_callback(end)
        return await asyncio.wrap_future(future)

    def _end(self) -> None:
        self._waiting -= 1

    def stop(self) -> None:
        """Drops what has not begun."""
        self._executor.shutdown(wait=False, cancel_futures=True)


class SideWork:
    """The work of all clients, one piece at a time. `run` is called in the event loop's thread."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._stopping = threading.Event()
        self._waiting = 0

    async def run(self, work: Callable[[Callable[[], None]], T]) -> T:
        """What `work` returns. It is called with a function to call often, which raises an error once it is in vain.

        Raises: ApiError if too much work is waiting, or the server is shutting down.
        """
        if self._waiting >= _MOST_WAITING:
            message = f"{self._waiting} inspections and reports are waiting for their turn; try again in about 2 s"
            raise ApiError(429, message, code="queue_full", headers=_RETRY)
        left = threading.Event()

        def check() -> None:
            if left.is_set() or self._stopping.is_set():
                raise StoppedError

        def work_in_turn() -> T:
            with self._turn:
                check()
                return work(check)

        self._waiting += 1
        try:
            return await in_own_thread(work_in_turn, self._end)
        except StoppedError as error:
            raise shutting_down() from error
        finally:
            left.set()

    def _end(self) -> None:
        self._waiting -= 1  # also of a client that has left: until its thread has noticed that, it waits too

    def stop(self) -> None:
        """Ends the work that runs and drops what has not begun."""
        self._stopping.set()
