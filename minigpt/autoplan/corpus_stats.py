"""The statistics of a text that a plan depends on."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from minigpt.data.corpus import Corpus
from minigpt.storage.run_record import BaselineRecord

_ENTROPY = "5-gram"  # the baseline that says how hard a text is to predict
_MOST_TOKENS = 2**21  # of a text whose new words are measured, which takes about 0.4 s for each million
_FEWEST_LETTERS = 1000  # in the last tenth of a text
_WORD = re.compile(r" ?\w+")


@dataclass(frozen=True)
class CorpusStats:
    """The figures of a text that a plan needs.

    `entropy` is how hard the text is to predict: the bits per byte that a 5-gram model of its training part needs for
    its held-out part. It is None if nothing is held out. `has_merges` says whether its tokenizer merges bytes.
    `new_words` says how often new words come: of the letters of the words in the last tenth of the training part, the
    share of those that belong to words that are not in the rest of it. None if it was not measured.
    `conversation` is the length in tokens of a long conversation of a chat log, than which one of ten is longer; 0 for
    other texts.
    """

    n_tokens: int
    n_bytes: int
    vocab_size: int
    entropy: float | None
    has_merges: bool = True
    new_words: float | None = None
    conversation: int = 0

    @classmethod
    def of(cls, corpus: Corpus, baselines: Iterable[BaselineRecord]) -> "CorpusStats":
        entropy = next((each.bits_per_byte for each in baselines if each.name == _ENTROPY), None)
        tokenizer = corpus.tokenizer
        return cls(
            len(corpus.train), corpus.train_bytes, tokenizer.vocab_size, entropy, bool(tokenizer.merges),
            conversation=_long_conversation(corpus) if corpus.is_chat_log else 0,
        )  # fmt: skip

    def with_new_words(self, corpus: Corpus) -> Self:
        """The same statistics with the new words of the corpus.

        Without them if its tokenizer has no merges to drop, or if it is long or has hardly any words.
        """
        if not self.has_merges or self.n_tokens > _MOST_TOKENS:
            return self
        earlier = self.n_tokens * 9 // 10
        before, words = (
            _WORD.findall(corpus.tokenizer.decode(part.tolist()))
            for part in (corpus.train[:earlier], corpus.train[earlier:])
        )
        known, letters = set(before), sum(map(len, words))
        if letters < _FEWEST_LETTERS:
            return self
        return replace(self, new_words=sum(len(word) for word in words if word not in known) / letters)


def _long_conversation(corpus: Corpus) -> int:
    """The length in tokens than which one conversation of ten is longer, of those at the beginning of a text."""
    ends = np.flatnonzero(corpus.train[:_MOST_TOKENS] == corpus.tokenizer.end_of_text)
    return int(np.quantile(np.diff(ends, prepend=-1), 0.9)) if len(ends) else 0
