"""One run on several processes as the training loop sees it: a world, here of one; it knows no torch.distributed.

Every process runs the same loop over its own rows of each batch. Whatever that loop decides by, a loss, the clock, a
request to stop, all processes have agreed on first, so that all of them decide alike.
`minigpt.training.process_group` has the worlds of several.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from minigpt.config import TrainConfig
from minigpt.device import resolve_device
from minigpt.errors import TrainingError
from minigpt.model.gpt import GPT
from minigpt.storage.run import LastState


class ProcessLostError(TrainingError):
    """Another process of the run has ended, so that this one cannot go on."""


class World:
    """The processes that train one model together; this one is a world of its own.

    `rank` counts them from 0, the main one, which writes the files and talks to the user; `local_size` of them are on
    this machine; `is_sharded` says whether each holds only a part of the model.
    """

    rank: int = 0
    size: int = 1
    local_size: int = 1
    is_sharded: bool = False

    def close(self) -> None:
        """Lets go of the other processes."""

    @property
    def is_main(self) -> bool:
        """Whether this process writes the files and talks to the user."""
        return self.rank == 0

    def device(self, name: str) -> torch.device:
        """The device of that name that is this process's own.

        Raises: DeviceError where the machine has not as many as it has processes.
        """
        device = resolve_device(name)
        if device.type == "cuda" and device.index is not None:
            torch.cuda.set_device(device)
        return device

    def rows(self, batch_size: int) -> range:
        """Those sequences of a step's batch that this process takes.

        Raises: ConfigError where there is not one for every process.
        """
        return range(batch_size)

    def accumulation_steps(self, own: int) -> int:
        """How many micro-batches a step takes on this process, whose rows make so many of them."""
        return own

    # The model.

    def shard(self, model: GPT, config: TrainConfig, device: torch.device) -> None:
        """Leaves this process its part of the model's weights, in place, where `config.sharding` wants that."""

    def wrap(self, module: nn.Module) -> nn.Module:
        """The module whose backward pass leaves every process with the sum of all gradients."""
        return module

    def no_sync(self, module: nn.Module) -> AbstractContextManager[object]:  # noqa: ARG002
        """A context for every backward pass of a step but the last, in which gradients need not meet yet."""
        return nullcontext()

    def unsharded(self, model: GPT) -> AbstractContextManager[object]:  # noqa: ARG002
        """A context that all processes enter, in which each can call the model without the others."""
        return nullcontext()

    # Ending.

    def announce(self, key: str, text: str = "") -> None:
        """Leaves word where every process, and what started them, can read it."""

    def main_failed(self) -> bool:
        """Whether the main process fails too, and says why: what is wrong with the settings is wrong for all, and is
        said once."""
        return False

    # What becomes one.

    def translate_errors(self) -> AbstractContextManager[object]:
        """A context in which the loss of another process is a ProcessLostError."""
        return nullcontext()

    def all_reduce_sum(self, figures: Tensor) -> Tensor:
        """The sum of every process's figures."""
        return figures

    def all_reduce_max(self, values: Sequence[float]) -> list[float]:
        """The largest of every process's values, one by one: the clock that has gone furthest, a request of anyone."""
        return list(values)

    def broadcast_object(self, value: Any) -> Any:
        """The main process's plain value, on every process."""
        return value

    def broadcast_state(self, state: LastState | None) -> LastState | None:
        """The main process's state, on every process; all of them go through its tensors alike."""
        return state

    def gather(self, tensor: Tensor) -> Tensor:
        """The whole of a tensor on the main process, to be written; elsewhere nothing that matters."""
        return tensor

    def unsharded_model(self, model: GPT) -> GPT:
        """The model with all of its weights on the main process, to be written."""
        return model


# A tensor in parts is a DTensor. It is known by its methods, since importing the class takes most of a second, and only
# sharding makes any.


def is_sharded_tensor(tensor: Tensor) -> bool:
    """Whether every process holds only a part of the tensor."""
    return hasattr(tensor, "full_tensor")


def full_tensor(tensor: Tensor) -> Tensor:
    """The whole of a tensor that may be in parts; all processes ask together."""
    return tensor.full_tensor() if is_sharded_tensor(tensor) else tensor  # type: ignore[attr-defined]


def to_local(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor that may be in parts, to be read or changed in place."""
    return tensor.to_local() if is_sharded_tensor(tensor) else tensor  # type: ignore[attr-defined]


def distribute_like(value: Tensor, other: Tensor) -> Tensor:
    """A whole value where another tensor is, and in parts if that one of the same shape is."""
    value = value.to(other.device)
    if not is_sharded_tensor(other) or value.shape != other.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    placements = other.placements  # type: ignore[attr-defined]
    return distribute_tensor(value, other.device_mesh, placements, src_data_rank=None)  # type: ignore[attr-defined]
