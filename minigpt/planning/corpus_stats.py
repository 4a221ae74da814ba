"""The statistics of a text that a plan depends on."""

from dataclasses import dataclass

from minigpt.data.corpus import Corpus
from minigpt.planning.scaling_law import entropy

_SAMPLE = 1_000_000  # tokens, which are at least as many bytes


@dataclass(frozen=True)
class CorpusStats:
    """The figures of a text that a plan needs.

    `entropy` is its size after compression in bits per byte, `has_merges` whether its tokenizer merges bytes.
    """

    n_tokens: int
    n_bytes: int
    vocab_size: int
    entropy: float
    has_merges: bool = True

    @classmethod
    def of(cls, corpus: Corpus) -> "CorpusStats":
        """The statistics of a corpus's training part; the entropy is that of its first megabyte."""
        beginning = corpus.tokenizer.decode(corpus.train[:_SAMPLE].tolist()).encode()
        tokenizer = corpus.tokenizer
        return cls(
            len(corpus.train), corpus.train_bytes, tokenizer.vocab_size, entropy(beginning), bool(tokenizer.merges)
        )
