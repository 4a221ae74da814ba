"""Which device and which arithmetic to use, and what memory there is; it knows no model."""

import contextlib
import ctypes
import functools
import os
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch

from minigpt.errors import DeviceError

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")
_LIMITS = {  # by the folder of both versions: the files of a limit and of what is used, and what of that is of files
    "": ("memory.max", "memory.current", ("inactive_file", "active_file")),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
}
_CLEARLY = 1.2  # times as fast
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def resolve_device(name: str = "auto") -> torch.device:
    """The device of that name; `auto` is CUDA, else Apple's MPS, else the CPU.

    Raises: DeviceError where this machine does not have it.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise DeviceError(f"device ({name!r}) must be auto, cpu, cuda, cuda:N or mps") from error
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            have = f"only cuda:0 to cuda:{count - 1} are here" if count else "torch sees no CUDA device here; use cpu"
            raise DeviceError(f"device ({name!r}) is not on this machine: {have}")
    elif device.type == "mps" and not torch.backends.mps.is_available():
        raise DeviceError("device ('mps') is not on this machine; use cpu")
    elif device.type not in ("cpu", "cuda", "mps"):
        raise DeviceError(f"device ({name!r}) must be auto, cpu, cuda, cuda:N or mps")
    return device


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """The dtype of that name; `auto` is bfloat16 on CUDA from Ampere on, float16 on older CUDA, else float32: on a CPU
    the same arithmetic everywhere, where `minigpt train` measures which is faster.

    Raises: DeviceError for float16 on a CPU, whose kernels torch does not train with.
    """
    if name == "auto":
        if device.type != "cuda":
            return torch.float32  # many CPUs only emulate bfloat16, several times slower
        return torch.bfloat16 if torch.cuda.get_device_capability(device) >= (8, 0) else torch.float16
    if name == "float16" and device.type == "cpu":
        raise DeviceError("dtype ('float16') needs a GPU; on a CPU use float32 or bfloat16")
    try:
        return _DTYPES[name]
    except KeyError as error:
        raise DeviceError(f"dtype ({name!r}) must be auto, {', '.join(_DTYPES)}") from error


@functools.cache
def multiplies_bfloat16_faster() -> bool:
    """Whether this CPU multiplies matrices of bfloat16 clearly faster than of float32, measured in some milliseconds.

    One that does not do so natively takes several times as long, and which flag says so differs from maker to maker.
    """
    best = {torch.float32: float("inf"), torch.bfloat16: float("inf")}
    for _ in range(4):  # in turn, so that a machine whose speed drifts slows both; the first product of all is slow
        for dtype in best:
            matrix = torch.ones(512, 512, dtype=dtype)
            began = time.perf_counter()
            matrix @ matrix
            best[dtype] = min(best[dtype], time.perf_counter() - began)
    return best[torch.float32] > _CLEARLY * best[torch.bfloat16]


def autocast(device: torch.device, dtype: torch.dtype) -> AbstractContextManager[object]:
    """A context in which matrix products run in `dtype`; nothing at all for float32."""
    if dtype == torch.float32:
        return nullcontext()
    return torch.autocast(device.type, dtype=dtype)


def allow_tf32(device: torch.device) -> None:
    """Lets CUDA multiply matrices of float32 in TF32 from here on: so does training, and what it is compared with."""
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")


def free_memory(device: torch.device) -> int:
    """Bytes to plan with: what is free on a CUDA device, torch's cache included, or, on Linux, in the machine or the
    container; elsewhere half of the machine's memory, and 4 GB where it does not say."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    try:
        available = next(line for line in _MEMINFO.read_text().splitlines() if line.startswith("MemAvailable:"))
        return min(int(available.split()[1]) * 1024, _left_in_container())
    except (OSError, StopIteration):  # not Linux
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        return 4_000_000_000


def _left_in_container() -> int:
    """Bytes that the control group of this process, and every group that holds it, may still take, files that they keep
    for having read them given up; very many where there is no limit."""
    least = sys.maxsize
    for root, (limited, current, of_files) in _LIMITS.items():
        for group in _own_groups(root):
            try:
                limit, used = (int((group / name).read_text()) for name in (limited, current))
                figures = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            except (OSError, ValueError):  # no such group, or "max": no limit
                continue
            least = min(least, max(0, limit - used + sum(int(figures.get(name, 0)) for name in of_files)))
    return least


def _own_groups(controller: str) -> list[Path]:
    """The folders of this process's group under a controller ("": of version 2) and of those that hold it."""
    root, own = _CGROUP / controller, "/"
    with contextlib.suppress(OSError):
        lines = [line.split(":", 2) for line in _OWN_GROUPS.read_text().splitlines()]
        own = next((path for _, controllers, path in lines if controller in controllers.split(",")), "/")
    group = root / own.lstrip("/")
    return [group, *group.parents[: len(group.relative_to(root).parts)]]


def keep_freed_memory() -> None:
    """Lets the allocator of glibc keep what is freed for the next step, where it would give most of it back to the
    system and have every page of it zeroed again: 3 to 10 % of a training step on a CPU. Other allocators stay as they
    are."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # macOS and musl have none, Windows no library without a name
        return
    mallopt(_MMAP_THRESHOLD, 2**25)  # the most that it takes: larger pieces are mapped and given back each time
    mallopt(_TRIM_THRESHOLD, 2**31 - 1)


def peak_memory(device: torch.device) -> int:
    """Bytes at the peak: what torch has held on a CUDA device, else the process's resident set."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows has no getrusage
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
