"""The devices of several processes on one machine."""

import torch

from minigpt.cores import available_cores
from minigpt.device import resolve_device
from minigpt.errors import ConfigError, DeviceError


def local_device(name: str, processes: int, rank: int = 0) -> torch.device:
    """The device for one of several processes on this machine; on CUDA each has a different one.

    Raises: DeviceError if there are too few devices; ConfigError if `name` is that of a single device.
    """
    device = resolve_device(name)
    if device.type == "cpu":
        return device
    if device.index is not None:
        raise ConfigError(
            f"device ({name!r}) is a single device; give {device.type}: each of the {processes} processes needs its own"
        )
    count = torch.cuda.device_count() if device.type == "cuda" else 1
    if processes > count:
        raise DeviceError(
            f"devices ({processes}) must be at most {count}, the {device.type} devices of this machine; "
            "more processes need --device cpu"
        )
    return torch.device(device.type, rank)


def check_count(count: int, device: str) -> None:
    """Raises ConfigError or DeviceError if `count` processes cannot train on that device of this machine."""
    if count > 1 and local_device(device, count).type == "cpu" and count > available_cores():
        raise DeviceError(f"devices ({count}) must be at most {available_cores()}, the cores that this process may use")
