"""The processor cores that this process may use, by its affinity and by the limits of its control group."""

import contextlib
import math
import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")
# For cgroups v2 ("") and v1 ("cpu"): the files with the microseconds of CPU time in a period, and with the period.
_QUOTAS = {"": ("cpu.max",), "cpu": ("cpu.cfs_quota_us", "cpu.cfs_period_us")}


def usable_cpus() -> list[int]:
    """The indices of the logical processors on which this process may run."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def available_cores() -> int:
    """The number of logical processors on which this process may run at once; a container may allow fewer than exist.

    A limit of 1.5 processors counts as 2.
    """
    cores = float(len(usable_cpus()))
    for controller, files in _QUOTAS.items():
        for group in own_groups(controller):
            try:
                quota, period = (int(word) for name in files for word in (group / name).read_text().split())
            except (OSError, ValueError):  # no such group, or no limit ("max")
                continue
            if quota > 0 and period > 0:  # -1 is no limit
                cores = min(cores, quota / period)
    return math.ceil(cores)


def own_groups(controller: str) -> list[Path]:
    """The folders of this process's control group and of its parents, under a controller ("" for cgroups v2)."""
    root, own = _CGROUP / controller, "/"
    with contextlib.suppress(OSError):
        lines = [line.split(":", 2) for line in _OWN_GROUPS.read_text().splitlines()]
        own = next((path for _, controllers, path in lines if controller in controllers.split(",")), "/")
    group = root / own.lstrip("/")
    return [group, *group.parents[: len(group.relative_to(root).parts)]]
