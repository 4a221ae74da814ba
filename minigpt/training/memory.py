"""Memory of a training step: activation checkpointing, and detection of out-of-memory errors."""

from functools import partial

import torch
from torch.utils.checkpoint import checkpoint

from minigpt.model.gpt import GPT

# The messages of torch on a CPU, on a CPU under Windows, on MPS (two), and of a GPU too full to start CUDA or cuBLAS or
# to load a compiled kernel.
_OUT_OF_MEMORY = (
    "can't allocate memory",
    "not enough memory",
    "MPS backend out of memory",
    "Invalid buffer size",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "Triton Error [CUDA]: out of memory",
)


def checkpoint_blocks(model: GPT) -> None:
    """Makes every block keep only its input and recompute the rest in the backward pass, with the same dropout.

    Source: Chen et al. 2016, "Training deep nets with sublinear memory cost".
    """
    for block in model.blocks:
        if not isinstance(block.forward, partial):  # an earlier training has done it
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether memory ran out: torch.OutOfMemoryError, or a RuntimeError whose message says so."""
    return isinstance(error, torch.OutOfMemoryError) or any(message in str(error) for message in _OUT_OF_MEMORY)
