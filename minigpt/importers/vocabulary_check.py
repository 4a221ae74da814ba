"""Whether a tokenizer and a model belong together; it reads neither."""

from minigpt.config import GPTConfig
from minigpt.errors import CheckpointError
from minigpt.tokenizer.tokenizer import Tokenizer

_GPT2_WORDS, _PADDED = 50257, 50304  # nanoGPT and others pad GPT-2's words to a multiple of 64


def may_use_gpt2_vocabulary(config: GPTConfig) -> bool:
    """Whether a model whose words are not said can have GPT-2's, by their number, padded or not."""
    return _GPT2_WORDS <= config.vocab_size <= _PADDED


def fit(tokenizer: Tokenizer, config: GPTConfig, source: object) -> list[str]:
    """What a user should know of a model that has more rows than its tokenizer has words; `source` names it in errors.

    Raises: CheckpointError where it has fewer.
    """
    words, rows = tokenizer.vocab_size, config.vocab_size
    if words > rows:
        raise CheckpointError(f"{source} has a model of {rows} words, and its tokenizer ({tokenizer.name}) has {words}")
    return [f"ids {words} to {rows - 1} have no word and are never drawn"] if words < rows else []
