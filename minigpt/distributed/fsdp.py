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
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

from minigpt.device import autocast
from minigpt.model.gpt import GPT, Block
from minigpt.training.world import is_sharded_tensor, to_local


def shard(model: GPT, device: torch.device, size: int, dtype: torch.dtype = torch.float32) -> None:
    """Gives every process its shard of the main process's weights, in place, block by block.

    Attention and MLP of a block are gathered in the `dtype` of its products, to which autocast would round them, layer
    norms, embeddings and all gradients in float32. So each `dtype` gives the same bits.
    """
    mesh = init_device_mesh(device.type, (size,))
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for block in model.blocks:
        assert isinstance(block, Block)
        _broadcast(block)
        if dtype != torch.float32:
            fully_shard([block.attention_norm, block.mlp_norm], mesh=mesh)
        fully_shard(block, mesh=mesh, mp_policy=policy)
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
def evaluating(model: GPT, dtype: torch.dtype = torch.float32) -> Iterator[None]:
    """A context for forward passes without gradients: a process holds its shard, the embeddings and two blocks.

    `dtype` is that of `shard`, in which the weights are.
    """
    try:
        with autocast(to_local(model.token_embedding.weight).device, dtype):
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
    """The modules that are gathered separately: the root, then the blocks, and in between their layer norms."""
    return [module for module in model.modules() if isinstance(module, FSDPModule)]
