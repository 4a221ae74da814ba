"""Chooses the tokenizer of a new model from the size of the text.

docs/experiments.md has the measurements.
"""

import math

_BYTES = 185  # of text for each token of the vocabulary
_LEAST, _MOST = 512, 8192  # tokens of the vocabulary, below _ALL_FROM
_ALL_FROM, _ALL = 1_200_000, 32_768  # bytes of text from which all merges are learned, up to that many tokens


def plan_tokenizer(text_bytes: int) -> str:
    """The tokenizer for a text of that size: one token per 185 bytes of text, rounded to a power of two.

    A small model gets much of its knowledge from its vocabulary. From 1.2 MB on, all merges are learned that the text
    gives, pairs of tokens that occur twice, up to 32,768 tokens. Below 30 kB there is too little text to learn merges
    from; above 300 MB the 50,257 tokens of GPT-2 are best.
    """
    if text_bytes < 30_000:
        return "bytes"
    if text_bytes >= 300_000_000:
        return "gpt2"
    if text_bytes >= _ALL_FROM:
        return f"bpe:{_ALL}"
    return f"bpe:{min(_MOST, max(_LEAST, 2 ** round(math.log2(text_bytes / _BYTES))))}"
