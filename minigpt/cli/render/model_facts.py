"""A model's size and shape as the rows of a table."""

from typing import TYPE_CHECKING

from minigpt.units import count, size

if TYPE_CHECKING:
    from minigpt.config import GPTConfig
    from minigpt.tokenizer.tokenizer import Tokenizer


def model_facts(config: "GPTConfig", tokenizer: "Tokenizer", weight_bytes: int) -> dict[str, str]:
    """The names and values; `weight_bytes` is 0 if there is no weights file."""
    vocabulary = count(tokenizer.vocab_size, "token")
    if config.vocab_size > tokenizer.vocab_size:
        vocabulary += f", padded to {config.vocab_size:,}"
    return {
        "parameters": f"{config.n_parameters:,}",
        "weights": size(weight_bytes) if weight_bytes else "none",
        "tokenizer": f"{tokenizer.name}, {vocabulary}",
        "context": count(config.n_positions, "token"),
        "shape": f"{count(config.n_layer, 'layer')}, {count(config.n_head, 'head')}, width {config.n_embd:,}",
        "dropout": f"{config.dropout:g}",
        "layer norm epsilon": f"{config.layer_norm_epsilon:g}",
        "activation function": config.activation_function,
    }
