"""A model whose weights, gradients and optimizer state lie in parts on several processes (FSDP2); it knows no step.

Every block is gathered where it is about to be computed, and let go again behind it: in a step no process holds more
than its part, the embeddings and two blocks; before the first step, and where it evaluates or samples, all the weights.
Source: Rajbhandari et al. 2020, "ZeRO: Memory optimizations toward training trillion parameter models", stage 3; Zhao
et al. 2023, "PyTorch FSDP".
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

from minigpt.model.gpt import GPT


def shard(model: GPT, device: torch.device, size: int) -> None:
    """Leaves this process its part of every weight, in place; all processes hold the same weights before."""
    mesh = init_device_mesh(device.type, (size,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)  # the head reads the embedding once more
    for part in _parts(model):
        part.set_gradient_divide_factor(1.0)  # each process's loss is its share of the whole batch's mean already
        part.set_force_sum_reduction_for_comms(True)  # a plain sum, which gloo has too
    register_fsdp_forward_method(model, "features")


@contextmanager
def unsharded(model: GPT) -> Iterator[None]:
    """A context in which this process has all the weights, and calls the model without the others."""
    model_part, *_ = parts = _parts(model)
    model_part.set_reshard_after_forward(False)
    for part in parts:
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.reshard()
        for part in parts[1:]:
            part.set_reshard_after_forward(True, recurse=False)


def _parts(model: GPT) -> list[FSDPModule]:
    """The modules that are gathered as one, the whole model first."""
    return [module for module in model.modules() if isinstance(module, FSDPModule)]
