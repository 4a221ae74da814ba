"""What the spellings of tokens have in common: words, beginnings, endings, capitals, spaces."""

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from minigpt.tokenizer.tokenizer import Tokenizer

_BEGINNINGS, _ENDINGS = (3, 4, 5), (2, 3, 4)  # characters


@dataclass(frozen=True, eq=False)
class SpellingFeatures:
    """The spelling features of each token of a vocabulary: a sparse matrix of zeros and ones, by rows and by columns.

    The features of token v are `features[token_starts[v] : token_starts[v + 1]]`, in order; the tokens with feature f
    are `tokens[feature_starts[f] : feature_starts[f + 1]]`. The last token's and the last feature's end with the array.
    Shapes: features and tokens (N,), token_starts (V,), feature_starts (F,), int64 each.
    """

    features: npt.NDArray[np.int64]
    token_starts: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int64]
    feature_starts: npt.NDArray[np.int64]

    @classmethod
    @lru_cache(maxsize=2)  # a plan builds several models with the same tokenizer
    def of(cls, tokenizer: Tokenizer, vocab_size: int) -> "SpellingFeatures":
        """The features that at least two tokens of a tokenizer have; ids from its vocabulary size on have none."""
        special = set(tokenizer.special.values())
        spelled = [
            set() if token in special or token >= tokenizer.vocab_size else _features(tokenizer.token_bytes(token))
            for token in range(vocab_size)
        ]
        counts = Counter(feature for features in spelled for feature in features)
        shared = sorted(feature for feature, count in counts.items() if count > 1)
        numbers = {feature: number for number, feature in enumerate(shared)}
        pairs = [
            (token, number)
            for token, features in enumerate(spelled)
            for number in sorted(numbers[feature] for feature in features if feature in numbers)
        ]
        tokens, features = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        return cls.from_pairs(tokens, features, vocab_size, len(shared))

    @classmethod
    def from_pairs(
        cls, tokens: npt.NDArray[np.int64], features: npt.NDArray[np.int64], vocab_size: int, count: int
    ) -> "SpellingFeatures":
        """The matrix with these ones, (N,) each, in the order of the tokens."""
        by_feature = np.argsort(features, kind="stable")
        return cls(
            features=np.ascontiguousarray(features),
            token_starts=np.searchsorted(tokens, np.arange(vocab_size)),
            tokens=tokens[by_feature],
            feature_starts=np.searchsorted(features[by_feature], np.arange(count)),
        )

    @property
    def count(self) -> int:
        """The number of features, F."""
        return len(self.feature_starts)


def _features(token: bytes) -> set[tuple[str, str]]:
    """The features of one token, each a kind and a value; none for a part of a character.

    " Walked" has the word "walked", the beginnings "wal", "walk" and "walke", the endings "ed", "ked" and "lked", a
    space and a capital.
    """
    try:
        text = token.decode()
    except UnicodeDecodeError:
        return set()
    bare = text.strip()
    word = bare.lower()
    if not word:
        return set()
    features = {("word", word), ("space", str(text[0].isspace()))}
    if not word[0].isalpha():
        return features | {("letter", "no")}
    features |= {("beginning", word[:length]) for length in _BEGINNINGS if len(word) >= length}
    features |= {("ending", word[-length:]) for length in _ENDINGS if len(word) > length}
    if bare[0].isupper():
        features.add(("case", "capital"))
    if len(bare) > 1 and bare.isupper():
        features.add(("case", "capitals"))
    return features
