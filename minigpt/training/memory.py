"""What a training step needs in memory, and how to need less; it takes no step."""

from functools import partial

from torch.utils.checkpoint import checkpoint

from minigpt.config import GPTConfig
from minigpt.model.gpt import GPT
from minigpt.training.loss import HEAD_ROWS


def checkpoint_blocks(model: GPT) -> None:
    """Makes every block keep only its input and compute the rest again in the backward pass, dropout alike.

    Source: Chen et al. 2016, "Training deep nets with sublinear memory cost".
    """
    for block in model.blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def state_bytes(config: GPTConfig, optimizer: str) -> int:
    """Bytes of weights, gradients and optimizer state, in float32: AdamW keeps two numbers a weight, Muon one."""
    inner = 12 * config.n_embd**2 * config.n_layer
    outer = config.n_parameters - inner
    return 4 * (4 * outer + (3 if optimizer == "muon" else 4) * inner)


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
