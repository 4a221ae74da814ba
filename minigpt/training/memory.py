"""What a training step needs in memory, and how to need less; it takes no step."""

from functools import partial

import torch
from torch.utils.checkpoint import checkpoint

from minigpt.config import GPTConfig
from minigpt.model.gpt import GPT
from minigpt.training.loss import HEAD_ROWS

# As torch says it of a CPU, of one under Windows, and of MPS, twice.
_NO_MEMORY = ("can't allocate memory", "not enough memory", "MPS backend out of memory", "Invalid buffer size")


def checkpoint_blocks(model: GPT) -> None:
    """Makes every block keep only its input and compute the rest again in the backward pass, dropout alike.

    Source: Chen et al. 2016, "Training deep nets with sublinear memory cost".
    """
    for block in model.blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def state_bytes(config: GPTConfig, optimizer: str, processes: int = 1) -> int:
    """Bytes of weights, gradients and optimizer state, in float32: AdamW keeps two numbers a weight, Muon one.

    One of several `processes` that hold the model in parts (minigpt.training.fsdp) begins with all the weights;
    later it has its part of all that, and the embeddings and two blocks, with their gradients, whole beside it; in an
    evaluation it has no gradients but all the weights.
    """
    inner = config.n_inner_parameters
    outer = config.n_parameters - inner
    state = 4 * (4 * outer + (3 if optimizer == "muon" else 4) * inner)
    if processes == 1:
        return state
    gathered = 2 * 4 * (outer + 2 * inner // config.n_layer)
    weights = 4 * config.n_parameters
    return max(state // processes + gathered, (state - weights) // processes + weights)


def activation_bytes(
    config: GPTConfig, context: int, sequences: int, *, checkpointing: bool = False, on_cpu: bool = True
) -> int:
    """Bytes that so many sequences at once keep for the backward pass, and the head's logits, in float32.

    A block keeps 16 numbers for each of its features (its inputs, both norms, Q, K, V, what the MLP makes), with
    dropout two masks more and, on a CPU, attention's weights three times; with checkpointing every block keeps one,
    and one block at a time all of them. Measured by what autograd saves (tests/training/test_memory.py).
    """
    kept = 16.0
    if config.dropout:
        kept += 2 + (3 * config.n_head * context / config.n_embd if on_cpu else 0)
    blocks = config.n_layer + kept if checkpointing else kept * config.n_layer
    features = 4 * sequences * context * config.n_embd * (blocks + 3)
    copies = 1 if on_cpu else 2.5  # of the logits: a CPU turns few of them into their gradient at one time
    logits = copies * min(HEAD_ROWS, sequences * context) * config.vocab_size
    head = 4 * (logits + config.vocab_size * config.n_embd)
    return int(features + head)


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether memory has run out: torch.OutOfMemoryError, or a plain RuntimeError of a CPU's allocator or of MPS."""
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in _NO_MEMORY)
