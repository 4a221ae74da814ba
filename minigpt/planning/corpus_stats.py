"""The statistics of a text that a plan depends on."""

from collections.abc import Iterable
from dataclasses import dataclass

from minigpt.data.corpus import Corpus
from minigpt.evaluation.baselines import Baseline

_ENTROPY = "5-gram"  # the baseline that says how hard a text is to predict


@dataclass(frozen=True)
class CorpusStats:
    """The figures of a text that a plan needs.

    `entropy` is how hard the text is to predict: the bits per byte that a 5-gram model of its training part needs for
    its held-out part. It is None if nothing is held out. `has_merges` says whether its tokenizer merges bytes.
    """

    n_tokens: int
    n_bytes: int
    vocab_size: int
    entropy: float | None
    has_merges: bool = True

    @classmethod
    def of(cls, corpus: Corpus, baselines: Iterable[Baseline]) -> "CorpusStats":
        """The statistics of a corpus, of which these baselines were measured."""
        entropy = next((each.bits_per_byte for each in baselines if each.name == _ENTROPY), None)
        tokenizer = corpus.tokenizer
        return cls(corpus.n_train_tokens, corpus.n_train_bytes, tokenizer.vocab_size, entropy, bool(tokenizer.merges))
