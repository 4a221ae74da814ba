"""Several processes of a `World` as threads of one process."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from minigpt.training.world import World


class Threads:
    """What the threads that stand for processes exchange."""

    def __init__(self, size: int) -> None:
        self.size, self.sent, self.barrier = size, [None] * size, threading.Barrier(size, timeout=60)

    def exchange(self, rank: int, value: Any) -> list[Any]:
        """The value of every process."""
        self.sent[rank] = value
        self.barrier.wait()
        values = list(self.sent)
        self.barrier.wait()
        return values

    def run(self, function: Callable[[World], Any]) -> list[Any]:
        """What the function returns on every process."""
        results: list[Any] = [None] * self.size

        def work(rank: int) -> None:
            results[rank] = function(ThreadWorld(self, rank))

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results


class ThreadWorld(World):
    def __init__(self, threads: Threads, rank: int) -> None:
        self.threads, self.rank, self.size = threads, rank, threads.size

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        return [received.clone() for received in self.threads.exchange(self.rank, tensor)]

    def all_to_all(self, parts: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
        received = [sent[self.rank].clone() for sent in self.threads.exchange(self.rank, parts)]
        assert [len(part) for part in received] == list(sizes)
        return received

    def all_reduce_max(self, values: Sequence[float]) -> list[float]:
        return [max(column) for column in zip(*self.threads.exchange(self.rank, values), strict=True)]
