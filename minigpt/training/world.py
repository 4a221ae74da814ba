"""The processes of a run as the training loop sees them: a `World`, here of one process.

Every process runs the same loop over its own rows of each batch. All processes use the same value
of everything that the loop decides by, such as a loss, the time or a request to stop.
The `distributed` edge has the world of several processes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from minigpt.config import TrainConfig
from minigpt.device import resolve_device
from minigpt.model.gpt import GPT
from minigpt.storage.last_state import LastState
from minigpt.storage.tensors import whole

Item = TypeVar("Item")


class World:
    """The processes that train one model together. This class is a world of one process.

    `rank` is this process's number; the main process is 0. `local_size` of the `size` processes are on this machine.
    `is_sharded` says whether each holds only a shard of the model. `was_restarted` says that the launcher
    has started the processes again, so that the run continues.
    """

    rank: int = 0
    size: int = 1
    local_size: int = 1
    is_sharded: bool = False
    was_restarted: bool = False

    def share(self, job: Any) -> None:
        """Sends the other processes what they need to train a job; None if there is nothing to train."""

    @property
    def is_main(self) -> bool:
        """Whether this process writes the files and prints."""
        return self.rank == 0

    def device(self, name: str) -> torch.device:
        """This process's device of the type `name`.

        Raises: DeviceError if the machine has fewer such devices than processes.
        """
        device = resolve_device(name)
        if device.type == "cuda" and device.index is not None:
            torch.cuda.set_device(device)
        return device

    def rows(self, batch_size: int) -> range:
        """The sequences of a step's batch that this process computes.

        Raises: ConfigError if there are fewer sequences than processes.
        """
        return range(batch_size)

    # The model.

    def shard(self, model: GPT, config: TrainConfig, device: torch.device) -> None:
        """Shards the model's weights over the processes, in place, if the settings say so."""

    def wrap(self, module: nn.Module) -> nn.Module:
        """The module with a backward pass that sums the gradients of all processes."""
        return module

    def no_sync(self, module: nn.Module) -> AbstractContextManager[object]:  # noqa: ARG002
        """A context for every accumulation step but the last, in which gradients need not be summed yet."""
        return nullcontext()

    def evaluating(self, model: GPT) -> AbstractContextManager[object]:  # noqa: ARG002
        """A context that all processes enter, in which all call the model equally often, or it is not sharded."""
        return nullcontext()

    def in_step(self, items: Iterator[Item]) -> Iterator[Item | None]:
        """The items of this process; with a sharded model, then None while another process still has some."""
        return items

    def unsharded(self, model: GPT) -> AbstractContextManager[object]:  # noqa: ARG002
        """A context that all processes enter, in which each has all weights and can call the model separately."""
        return nullcontext()

    def can_unshard(self, model: GPT) -> bool:  # noqa: ARG002
        """Whether every process has memory for all weights."""
        return True

    def announce(self, key: str, text: str = "") -> bool:  # noqa: ARG002
        """Stores a value that every process and the launcher can read; returns whether that was possible."""
        return False

    # Collective operations.

    def translate_errors(self) -> AbstractContextManager[object]:
        """A context in which a lost connection to another process becomes a TrainingError."""
        return nullcontext()

    def all_reduce_sum(self, figures: Tensor) -> Tensor:
        """The element-wise sum over all processes."""
        return figures

    def all_reduce_max(self, values: Sequence[float]) -> list[float]:
        """The element-wise maximum over all processes: the latest time, a request of any process."""
        return list(values)

    def broadcast_object(self, value: Any) -> Any:
        """The main process's value, which JSON can represent, on every process."""
        return value

    def broadcast_state(self, state: LastState | None) -> LastState | None:
        """The main process's state, on every process. All processes must read its tensors in the same order."""
        return state

    @contextmanager
    def gathering(self, tensors: Mapping[str, Tensor]) -> Iterator[Callable[[Tensor], Tensor]]:  # noqa: ARG002
        """A context for writing tensors, and a function for the full tensor of one, which the main process writes.

        All processes enter it. The main process calls the function with each tensor, in the order of the file.
        """
        yield whole


# A sharded tensor is a DTensor. It is recognized by a method, since importing the class takes most of a second.


def is_sharded_tensor(tensor: Tensor) -> bool:
    """Whether every process holds only a shard of the tensor."""
    return hasattr(tensor, "full_tensor")


def full_tensor(tensor: Tensor) -> Tensor:
    """The full tensor of one that may be sharded. All processes must call this together."""
    return tensor.full_tensor() if is_sharded_tensor(tensor) else tensor  # type: ignore[attr-defined]


def to_local(tensor: Tensor) -> Tensor:
    """This process's shard of a tensor that may be sharded, to be read or changed in place."""
    return tensor.to_local() if is_sharded_tensor(tensor) else tensor  # type: ignore[attr-defined]


def distribute_like(value: Tensor, other: Tensor) -> Tensor:
    """A full tensor on the device of another, and sharded like it if they have the same shape."""
    value = value.to(other.device)
    if not is_sharded_tensor(other) or value.shape != other.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    placements = other.placements  # type: ignore[attr-defined]
    return distribute_tensor(value, other.device_mesh, placements, src_data_rank=None)  # type: ignore[attr-defined]
