"""Runs what is computed beside generation, such as inspections: one piece of work at a time, in a separate thread."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from minigpt.server.api_error import ApiError

_MOST_WAITING = 8

T = TypeVar("T")


class StoppedError(Exception):
    """Ends work whose client has left."""


class SideWork:
    """One thread for the work of all clients. Its `run` is called in the event loop's thread."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="minigpt side work")
        self._waiting = 0

    async def run(self, work: Callable[[Callable[[], None]], T]) -> T:
        """What `work` returns. It is called with a function to call often, which raises an error once it is in vain.

        Raises: ApiError if too much work is waiting.
        """
        if self._waiting >= _MOST_WAITING:
            message = f"{self._waiting} inspections and reports are waiting for their turn; try again in about 2 s"
            raise ApiError(429, message, code="queue_full", headers={"Retry-After": "2"})
        left = threading.Event()

        def check() -> None:
            if left.is_set():
                raise StoppedError

        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, work, check)
        finally:
            left.set()
            self._waiting -= 1

    def stop(self) -> None:
        """Drops work that has not begun."""
        self._executor.shutdown(wait=False, cancel_futures=True)
