"""The control groups of this process, with which Linux limits the resources of a container."""

import contextlib
import math
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")
# For cgroups v2 ("") and v1 ("memory"): the files with the limit and the usage, and its entries for cached files.
_MEMORY_FILES = {
    "": (("memory.max", "memory.current"), ("inactive_file", "active_file")),
    "memory": (("memory.limit_in_bytes", "memory.usage_in_bytes"), ("total_inactive_file", "total_active_file")),
}
# For v2 and v1: the files whose numbers are the quota of processor time in a period, and the length of the period.
_PROCESSOR_FILES = {"": ("cpu.max",), "cpu": ("cpu.cfs_quota_us", "cpu.cfs_period_us")}
_THREAD_CONTROLLERS = ("", "pids")  # of v2 and v1


def free_memory() -> int:
    """Bytes that this process's control group and its parents may still use, with cached files counted as free.

    Without a limit it is `sys.maxsize`; so are the other functions' results.
    """

    def free(group: Path, controller: str) -> int:
        names, cached_files = _MEMORY_FILES[controller]
        limit, used = (int((group / name).read_text()) for name in names)
        entries = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return max(0, limit - used + sum(int(entries.get(name, 0)) for name in cached_files))

    return _least(_MEMORY_FILES, free)


def processor_quota() -> int:
    """The number of processors whose time this process's control group and its parents may use, rounded up."""

    def quota(group: Path, controller: str) -> int:
        files = _PROCESSOR_FILES[controller]
        time, period = (int(number) for name in files for number in (group / name).read_text().split())
        return math.ceil(time / period) if time > 0 and period > 0 else sys.maxsize  # v1 writes -1 for no quota

    return _least(_PROCESSOR_FILES, quota)


def free_threads() -> int:
    """The number of threads that this process's control group and its parents may still start."""

    def free(group: Path, _: str) -> int:
        limit, used = (int((group / name).read_text()) for name in ("pids.max", "pids.current"))
        return max(0, limit - used)

    return _least(_THREAD_CONTROLLERS, free)


def _least(controllers: Iterable[str], measure: Callable[[Path, str], int]) -> int:
    found = [sys.maxsize]
    for controller in controllers:
        for group in _own_groups(controller):
            with contextlib.suppress(OSError, ValueError):  # no such group, or no limit ("max")
                found.append(measure(group, controller))
    return min(found)


def _own_groups(controller: str) -> list[Path]:
    """The folders of this process's control group and of its parents, under a controller ("" for cgroups v2)."""
    root, own = _CGROUP / controller, "/"
    with contextlib.suppress(OSError):
        lines = [line.split(":", 2) for line in _OWN_GROUPS.read_text().splitlines()]
        own = next((path for _, controllers, path in lines if controller in controllers.split(",")), "/")
    group = root / own.lstrip("/")
    return [group, *group.parents[: len(group.relative_to(root).parts)]]
