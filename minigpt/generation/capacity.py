"""How many continuations fit in memory in parallel."""

import torch

from minigpt.config import GPTConfig, SamplingConfig
from minigpt.device import free_memory
from minigpt.errors import ConfigError

_MAX_ROWS = 32  # more parallel rows gain little speed
_SHARE_OF_MEMORY = 0.8  # of the free memory that all rows may take


def rows_at_once(shape: GPTConfig, dtype: torch.dtype, config: SamplingConfig, device: torch.device) -> int:
    """The number of rows to generate in parallel with weights of this dtype, a multiple of `texts_per_prompt`.

    Raises: ConfigError if the samples of one prompt do not fit; it says how many would.
    """
    row = slot_bytes(shape, dtype) + 8 * shape.vocab_size  # bytes: keys and values, and logits
    needed = config.rows_per_prompt
    free = free_memory(device)
    fitting = int(_SHARE_OF_MEMORY * free) // row
    if fitting < needed:
        remedy = f"{fitting} would fit" if fitting else "use a smaller model, or free memory"
        needs = "1 continuation needs" if needed == 1 else f"{needed} continuations in parallel need"
        raise ConfigError(
            f"{needs} {needed * row / 1e9:.1f} GB for keys and values, but may take "
            f"only {_SHARE_OF_MEMORY:.0%} of the {free / 1e9:.1f} GB that are free; {remedy}"
        )
    per_prompt = config.texts_per_prompt
    return max(per_prompt, min(fitting, _MAX_ROWS) // per_prompt * per_prompt)


def slot_bytes(shape: GPTConfig, dtype: torch.dtype) -> int:
    """Bytes of the keys and values of one text; a KVCache has space for the whole context from the start."""
    return 2 * dtype.itemsize * shape.n_layer * shape.n_embd * shape.n_positions
