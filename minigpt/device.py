"""Chooses the device and the dtype, and reports how much memory there is."""

import ctypes
import functools
import math
import time
from contextlib import AbstractContextManager, nullcontext

import psutil
import torch
from torch import Tensor

from minigpt import cgroups
from minigpt.errors import DeviceError

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
_SMALL_MATRICES, _CLEARLY_FASTER = 0.25, 1.2  # times the speed of float32
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def resolve_device(name: str = "auto") -> torch.device:
    """The device of that name; `auto` is CUDA, else Apple's MPS, else the CPU.

    Raises: DeviceError if this machine does not have it.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")  # none of those below
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            devices = "cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
            reason = f"it has {devices}" if count else "PyTorch finds no CUDA device; use cpu"
            raise DeviceError(f"device ({name!r}) is not on this machine: {reason}")
    elif device.type == "mps" and not torch.backends.mps.is_available():
        raise DeviceError("device ('mps') is not on this machine; use cpu")
    elif device.type not in ("cpu", "cuda", "mps"):
        raise DeviceError(f"device ({name!r}) must be auto, cpu, cuda, cuda:N or mps")
    return device


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """The dtype of that name.

    `auto` is bfloat16 on CUDA since Ampere, float16 on older CUDA devices, else float32. `minigpt train` measures
    whether bfloat16 is faster on a CPU.

    Raises: DeviceError for an unknown name, and for float16 on a CPU, where PyTorch cannot train with it.
    """
    if name == "auto":
        if device.type != "cuda":
            return torch.float32  # many CPUs only emulate bfloat16, several times slower
        return torch.bfloat16 if torch.cuda.get_device_capability(device) >= (8, 0) else torch.float16
    if name == "float16" and device.type == "cpu":
        raise DeviceError("dtype ('float16') needs a GPU; on a CPU use float32 or bfloat16")
    if name not in _DTYPES:
        raise DeviceError(f"dtype ({name!r}) must be auto, {', '.join(_DTYPES)}")
    return _DTYPES[name]


def resolve_generation_dtype(name: str, device: torch.device) -> torch.dtype:
    """The dtype of the weights of a model that generates; `auto` is bfloat16 on CUDA since Ampere, else float32.

    A token reads every weight, so that half of the bytes takes half of the time.
    Raises: DeviceError as `resolve_dtype`.
    """
    found = resolve_dtype(name, device)
    return torch.float32 if (name, found) == ("auto", torch.float16) else found


@functools.cache
def multiplies_bfloat16_faster() -> bool:
    """Whether this CPU multiplies bfloat16 matrices at least 1.2 times as fast as float32, measured in some ms.

    CPUs without native bfloat16 take many times as long, which small matrices show already, and each manufacturer has
    its own flag for it.
    """
    return _bfloat16_speed(128) > _SMALL_MATRICES and _bfloat16_speed(512) > _CLEARLY_FASTER


def _bfloat16_speed(size: int) -> float:
    """How many times as fast as in float32 square matrices are multiplied in bfloat16 on this CPU."""
    best = {torch.float32: math.inf, torch.bfloat16: math.inf}
    for _ in range(4):  # alternating, so that a drift in speed affects both; the first product is slow
        for dtype in best:
            matrix = torch.ones(size, size, dtype=dtype)
            start = time.perf_counter()
            matrix @ matrix
            best[dtype] = min(best[dtype], time.perf_counter() - start)
    return best[torch.float32] / best[torch.bfloat16]


def autocast(device: torch.device, dtype: torch.dtype) -> AbstractContextManager[object]:
    """A context in which matrix products run in `dtype`; it does nothing for float32."""
    if dtype == torch.float32:
        return nullcontext()
    return torch.autocast(device.type, dtype=dtype)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the CPU on a device. On CUDA the copy is in order with the GPU's work, and the CPU does not wait.

    `torch.tensor(values, device="cuda")` and `tensor.to("cuda")` wait until the GPU has done all that it was given.
    """
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def product_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which matrix products with `x` are computed: that of autocast if it is on, else that of `x`."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def avoid_cudnn_attention() -> None:
    """Makes CUDA compute attention without cuDNN from now on, which prepares each new length for 40 ms and more.

    In generation every prompt and, without CUDA graphs, every token has a new length.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)


def free_memory(device: torch.device) -> int:
    """Bytes of memory available to this process: on CUDA the device's free memory plus PyTorch's cache, else the free
    memory of the machine or, on Linux, of the container; 4 GB if it is unknown."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    try:
        return min(int(psutil.virtual_memory().available), cgroups.free_memory())
    except (OSError, RuntimeError, psutil.Error):  # a sandbox without /proc
        return 4_000_000_000


def keep_freed_memory() -> None:
    """Makes glibc's allocator keep freed memory for the next step of training, or of a server.

    By default glibc returns most of it to the system, which zeroes every page again; this costs 3 to 10 % of a training
    step on a CPU, and up to half of the time to sample the tokens of many rows. Other allocators are not changed.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # macOS and musl lack mallopt; Windows needs a library name
        return
    mallopt(_MMAP_THRESHOLD, 2**25)  # the largest value allowed; larger blocks are mapped and returned each time
    mallopt(_TRIM_THRESHOLD, 2**31 - 1)
