"""The tensors of a state, sent from the main process to the others one by one."""

from collections.abc import Iterator, Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from minigpt.storage.last_state import LastState


class BroadcastTensors(Mapping[str, Tensor]):
    """The main process's tensors, each sent when it is read: not every process has memory for all of them."""

    def __init__(self, shapes: Mapping[str, tuple[str, list[int]]], state: LastState | None) -> None:
        self.shapes = shapes
        self.own = state.tensors if state is not None else None

    def __getitem__(self, name: str) -> Tensor:
        dtype, shape = self.shapes[name]
        if self.own is None:
            tensor = torch.empty(shape, dtype=getattr(torch, dtype.removeprefix("torch.")))
        else:
            tensor = self.own[name].cpu().contiguous()
        if tensor.numel():
            dist.broadcast(tensor.reshape(-1).view(torch.uint8), 0)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)
