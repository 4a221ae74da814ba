"""Chooses a vocabulary size, and learns a tokenizer's merges from texts."""

import json
import math
import re
from collections.abc import Iterable

from minigpt.errors import TokenizerError
from minigpt.tokenizer.vocabulary import Merge, decode_merges

_LARGEST_BPE = 500_000  # tokens; a tokenizer.json has two values for each, and may have MAX_VALUES
_TEXT_BYTES = 185  # of text for each token of the vocabulary
_LEAST_TOKENS, _MOST_TOKENS = 512, 8192  # tokens of the vocabulary, below _ALL_FROM
_ALL_FROM, _ALL = 1_200_000, 32_768  # bytes of text from which all merges are learned, up to that many tokens
_LONG_PRETOKEN = re.compile(r"\S{256}(?=\S)")
_LONG_BLANK = re.compile(r"(\s{256})\s+")


def requested_vocab_size(spec: str) -> int | None:
    """The N of `bpe:N`, or None for `gpt2`, `bytes` and `chars`.

    Raises: TokenizerError for any other specification, and for an N below 257 or above 500,000.
    """
    if spec in ("gpt2", "bytes", "chars"):
        return None
    match = re.fullmatch(r"bpe:(\d{1,9})", spec, re.ASCII)
    if not match:
        raise TokenizerError(f"tokenizer ({spec!r}) must be gpt2, bytes, chars or bpe:N, such as bpe:4096")
    size = int(match[1])
    if size < 257:
        raise TokenizerError(f"tokenizer ({spec!r}) must have at least 257 tokens: the 256 bytes and end-of-text")
    if size > _LARGEST_BPE:
        raise TokenizerError(f"tokenizer ({spec!r}) must have at most {_LARGEST_BPE:,} tokens, such as bpe:32768")
    return size


def default_tokenizer(text_bytes: int) -> str:
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
    return f"bpe:{min(_MOST_TOKENS, max(_LEAST_TOKENS, 2 ** round(math.log2(text_bytes / _TEXT_BYTES))))}"


def train_merges(texts: Iterable[str], count: int) -> list[Merge]:
    """At most `count` merges, each the most frequent pair of tokens in the texts after the merges before it.

    Pairs that occur only once are not merged. The trainer rescans a pre-token after every merge, so that one of 65,536
    letters would take minutes; long pre-tokens are therefore trained on in pieces of 256 characters. Of longer white
    space, which has no place for a cut, the first 256 characters are trained on.
    """
    import tokenizers  # imported here because only training needs it
    from tokenizers import models, pre_tokenizers, trainers

    trainer = trainers.BpeTrainer(
        vocab_size=256 + count,
        min_frequency=2,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    trained = tokenizers.Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.train_from_iterator(map(_shorten_pretokens, texts), trainer)
    return decode_merges(json.loads(trained.to_str())["model"]["merges"], {})


def _shorten_pretokens(text: str) -> str:
    return _LONG_PRETOKEN.sub("\\g<0>\n", _LONG_BLANK.sub(r"\1", text))
