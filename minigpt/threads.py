"""How many threads compute."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from minigpt.cores import available_cores
from minigpt.edges import provided


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """A context in which torch computes with `count` threads."""
    before = torch.get_num_threads()
    if count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def respect_cpu_quota() -> None:
    """Limits torch's threads to the CPU quota of the process's container, unless OMP_NUM_THREADS is set."""
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(min(torch.get_num_threads(), available_cores()))


def threads_per_process(processes: int) -> int:
    """The number of threads of each of several processes that share the cores of this machine."""
    return max(1, available_cores() // processes)


def sharing_cores(processes: int) -> AbstractContextManager[None]:
    """A context in which torch computes with as many threads as each of the `processes` on this machine will have."""
    alone = processes == 1 or "OMP_NUM_THREADS" in os.environ
    return nullcontext() if alone else torch_threads(threads_per_process(processes))


def watch_load() -> None:
    """Says that this process computes from here on: an edge may watch what other programs leave free ("watch_load")."""
    for watch in provided("watch_load"):
        watch(torch.get_num_threads())
