"""What is computed beside generation, in turns: one piece of work of a kind at a time."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from minigpt.server.api_error import ApiError

T = TypeVar("T")


class StoppedError(Exception):
    """Ends work whose client has left."""


class Turns:
    """One kind of work, `kind`, of which `most` pieces may wait or run."""

    def __init__(self, kind: str, most: int) -> None:
        self._kind, self._most = kind, most
        self._lock = asyncio.Lock()
        self._waiting = 0

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """A context that is entered when all earlier ones have ended.

        Raises: ApiError if too much work is waiting.
        """
        if self._waiting >= self._most:
            message = f"{self._waiting} requests are waiting for {self._kind}; try again in about 2 s"
            raise ApiError(429, message, code="queue_full", headers={"Retry-After": "2"})
        self._waiting += 1
        try:
            async with self._lock:
                yield
        finally:
            self._waiting -= 1

    async def run(self, work: Callable[[Callable[[], None]], T]) -> T:
        """What `work` returns, computed in a thread. It is called with a function to call often, which raises an error
        once the client has left; the turn lasts until then.

        Raises: ApiError if too much work is waiting.
        """
        left = threading.Event()

        def check() -> None:
            if left.is_set():
                raise StoppedError

        async with self.turn():
            working = asyncio.ensure_future(in_own_thread(lambda: work(check)))
            try:
                return await asyncio.shield(working)
            finally:
                left.set()
                await asyncio.gather(working, return_exceptions=True)


async def in_own_thread(function: Callable[[], T]) -> T:
    """What the function returns, computed in a thread that ends with it.

    OpenMP keeps a team of threads for every thread that has computed with it, and counts them all. Once they are more
    than the cores, they sleep at once where they waited for each other in a loop, and a step takes twice as long. In a
    server only the worker's thread may therefore live on.
    """
    executor = ThreadPoolExecutor(1, thread_name_prefix="minigpt side work")
    try:
        return await asyncio.get_running_loop().run_in_executor(executor, function)
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
