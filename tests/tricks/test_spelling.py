"""Spelling features of tokens."""

import numpy as np
import pytest

from minigpt import Tokenizer
from minigpt.tricks.spelling import SpellingFeatures, _features

TEXT = "She walked. He Walked, walks; WALKED talked talks.\n" * 20


def together(features: SpellingFeatures, first: int, second: int) -> int:
    """The number of features that two tokens share."""
    ends = np.append(features.token_starts, len(features.features))
    sets = [set(features.features[ends[token] : ends[token + 1]].tolist()) for token in (first, second)]
    return len(sets[0] & sets[1])


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        (b" Walked", {"word walked", "space True", "beginning wal", "beginning walk", "beginning walke", "ending ed",
                      "ending ked", "ending lked", "case capital"}),
        (b"WE", {"word we", "space False", "case capital", "case capitals"}),
        (b"I", {"word i", "space False", "case capital"}),
        (b" 12", {"word 12", "space True", "letter no"}),
        ("Übel".encode(), {"word übel", "space False", "beginning übe", "beginning übel", "ending el", "ending bel",
                           "case capital"}),
        ("日本".encode(), {"word 日本", "space False"}),
        (b"\n\n", set()),
        (b"\xc3", set()),
        (b"", set()),
    ],
)  # fmt: skip
def test_the_features_of_a_token(token: bytes, expected: set[str]) -> None:
    assert {" ".join(feature) for feature in _features(token)} == expected


def test_tokens_of_one_word_share_more_than_others_and_special_tokens_share_nothing() -> None:
    tokenizer = Tokenizer.train([TEXT], "bpe:300")
    features = SpellingFeatures.of(tokenizer, tokenizer.vocab_size + 3)
    ids = {name: tokenizer.encode(name) for name in (" walked", " Walked", " talked")}
    assert all(len(each) == 1 for each in ids.values())
    (walked,), (capital,), (talked,) = ids.values()
    assert together(features, walked, capital) > together(features, walked, talked) > 1
    for token in (tokenizer.end_of_text, *range(tokenizer.vocab_size, tokenizer.vocab_size + 3)):
        assert together(features, token, token) == 0


def test_rows_and_columns_are_the_same_matrix_and_every_feature_is_shared() -> None:
    tokenizer = Tokenizer.train([TEXT], "bpe:300")
    features = SpellingFeatures.of(tokenizer, tokenizer.vocab_size)
    matrices = []
    for columns, starts in ((features.features, features.token_starts), (features.tokens, features.feature_starts)):
        rows = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(columns))))
        matrices.append(set(zip(rows.tolist(), columns.tolist(), strict=True)))
    assert {(token, feature) for feature, token in matrices[1]} == matrices[0]
    assert np.diff(np.append(features.feature_starts, len(features.tokens))).min() >= 2
    assert features.count == len(features.feature_starts)


def test_bytes_have_features_too() -> None:
    features = SpellingFeatures.of(Tokenizer.named("bytes"), 257)
    assert features.count  # "a" and "A" have the same word
