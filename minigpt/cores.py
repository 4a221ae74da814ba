"""The processor cores that this process may use."""

import os

from minigpt.cgroups import processor_quota


def usable_cpus() -> list[int]:
    """The indices of the logical processors on which this process may run."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def available_cores() -> int:
    """The number of logical processors on which this process may run, at most those that a container's quota fills."""
    return min(len(usable_cpus()), processor_quota())
