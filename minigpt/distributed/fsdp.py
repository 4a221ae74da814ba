"""Shards the weights, gradients and optimizer state of a model over several processes (FSDP2).

Every block is gathered before it is computed and freed after it. In a step and in an evaluation, a process holds its
shard, the embeddings and two blocks; for a sample it holds all weights.
Source: Rajbhandari et al. 2020, "ZeRO: Memory optimizations toward training trillion parameter models", stage 3; Zhao
et al. 2023, "PyTorch FSDP".
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

from minigpt.model.gpt import GPT
from minigpt.training.world import is_sharded_tensor


def shard(model: GPT, device: torch.device, size: int) -> None:
    """Gives every process its shard of the main process's weights, in place, block by block."""
    mesh = init_device_mesh(device.type, (size,))
    for block in model.blocks:
        _broadcast(block)
        fully_shard(block, mesh=mesh)
    _broadcast(model)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)  # the head reads the embedding again
    for module in _sharded_modules(model):
        module.set_gradient_divide_factor(1.0)  # each process's loss is already its share of the batch's mean
        module.set_force_sum_reduction_for_comms(True)  # a plain sum, which gloo supports too
    register_fsdp_forward_method(model, "features")


def _broadcast(module: nn.Module) -> None:
    """Sends the main process's weights and buffers of a module that are not sharded yet to all."""
    for tensor in (*module.parameters(), *module.buffers()):
        if not is_sharded_tensor(tensor):
            dist.broadcast(tensor.detach(), 0)


@contextmanager
def evaluating(model: GPT) -> Iterator[None]:
    """A context for forward passes without gradients: a process holds its shard, the embeddings and two blocks."""
    try:
        yield
    finally:
        for module in _sharded_modules(model):
            module.reshard()


@contextmanager
def unsharded(model: GPT) -> Iterator[None]:
    """A context in which this process has all weights and can call the model without the others."""
    root, *blocks = _sharded_modules(model)
    root.set_reshard_after_forward(False)
    for module in (root, *blocks):
        module.unshard()
    try:
        yield
    finally:
        for module in (root, *blocks):
            module.reshard()
        for module in blocks:
            module.set_reshard_after_forward(True, recurse=False)


def _sharded_modules(model: GPT) -> list[FSDPModule]:
    """The modules that are gathered separately: the root, then the blocks."""
    return [module for module in model.modules() if isinstance(module, FSDPModule)]
