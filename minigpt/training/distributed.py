"""One run on several processes: who takes which rows, and how gradients, figures and requests become one."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from minigpt.device import resolve_device
from minigpt.model.gpt import GPT
from minigpt.storage.run import LastState


class World:
    """The processes that train one model together; this one is a world of its own."""

    rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes the files and talks to the user."""
        return self.rank == 0

    def device(self, name: str) -> torch.device:
        """The device of that name that is this process's own."""
        return resolve_device(name)

    def rows(self, batch_size: int) -> range:
        """Those sequences of a step's batch that this process takes."""
        return range(batch_size)

    def wrap(self, module: nn.Module) -> nn.Module:
        """The module whose backward pass leaves every process with the sum of all gradients."""
        return module

    def accumulating(self, module: nn.Module) -> AbstractContextManager[object]:  # noqa: ARG002
        """A context for every backward pass of a step but the last, in which gradients need not meet yet."""
        return nullcontext()

    def add_up(self, figures: Tensor) -> Tensor:
        """The sum of every process's figures."""
        return figures

    def agree(self, values: Sequence[float]) -> list[float]:
        """The largest of every process's values, one by one: the clock that has gone furthest, a request of anyone."""
        return list(values)

    def whole(self, tensor: Tensor) -> Tensor:
        """The whole of a tensor of which this process may hold a part."""
        return tensor

    def whole_model(self, model: GPT) -> GPT:
        """The model with all of its weights, to be written."""
        return model

    def own_parts(self, model: nn.Module) -> Iterator[Tensor]:
        """What this process holds of the model's parameters."""
        return model.parameters()

    def share(self, state: LastState | None) -> LastState | None:
        """The main process's state, on every process."""
        return state
