"""Each filter on four tokens by hand, and against transformers' own on random logits."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minigpt.generation.logits_processors import (
    ban_repeated_ngrams,
    ban_sequences,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    keep_typical,
    penalize_frequency,
    penalize_repetition,
)

LOGITS = torch.tensor([[0.1, 0.4, 0.2, 0.3]]).log()
INF = math.inf


def kept(logits: Tensor) -> list[list[bool]]:
    return logits.isfinite().tolist()


def random_logits(seed: int, words: int, rows: int = 3) -> Tensor:
    return torch.randn(rows, words, generator=torch.Generator().manual_seed(seed)) * 3


def random_history(seed: int, words: int, length: int, rows: int = 3) -> Tensor:
    return torch.randint(words, (rows, length), generator=torch.Generator().manual_seed(seed))


# Which tokens are kept


def test_top_k_keeps_the_k_likeliest() -> None:
    assert kept(keep_top_k(LOGITS, 2)) == [[False, True, False, True]]


def test_top_k_above_the_vocabulary_keeps_everything() -> None:
    assert torch.equal(keep_top_k(LOGITS, 50), LOGITS)


@pytest.mark.parametrize(
    ("p", "expected"),
    [
        (0.39, [False, True, False, False]),
        (0.41, [False, True, False, True]),
        (0.71, [False, True, True, True]),
        (1e-9, [False, True, False, False]),
    ],
)
def test_top_p_keeps_the_smallest_set_that_holds_p(p: float, expected: list[bool]) -> None:
    assert kept(keep_top_p(LOGITS, p)) == [expected]


def test_top_p_may_differ_from_row_to_row() -> None:
    logits = keep_top_p(LOGITS.expand(2, 4), torch.tensor([[0.39], [0.71]]))
    assert kept(logits) == [[False, True, False, False], [False, True, True, True]]


def test_min_p_keeps_what_is_likely_enough_beside_the_likeliest() -> None:
    assert kept(keep_min_p(LOGITS, 0.6)) == [[False, True, False, True]]
    assert kept(keep_min_p(LOGITS, 1.0)) == [[False, True, False, False]]


def test_typical_keeps_the_tokens_whose_surprise_is_nearest_the_expected_one() -> None:
    # Surprises 2.30, 0.92, 1.61, 1.20 nats; 1.28 are expected: the fourth token is nearest, then the third.
    assert kept(keep_typical(LOGITS, 0.29)) == [[False, False, False, True]]
    assert kept(keep_typical(LOGITS, 0.31)) == [[False, False, True, True]]
    assert kept(keep_typical(LOGITS, 0.51)) == [[False, True, True, True]]


def test_typical_counts_forbidden_tokens_for_nothing() -> None:
    logits = torch.cat([torch.tensor([[-INF]]), LOGITS, torch.tensor([[-INF]])], dim=1)
    assert kept(keep_typical(logits, 0.31)) == [[False, False, False, True, True, False]]


def test_ties_with_the_last_token_kept_are_kept() -> None:
    logits = torch.tensor([[0.0, 1.0, 1.0, 1.0, -1.0]])
    for filtered in (keep_top_k(logits, 2), keep_top_p(logits, 0.5), keep_typical(logits, 0.1)):
        assert kept(filtered) == [[False, True, True, True, False]]


def test_a_vocabulary_of_one_word_keeps_it() -> None:
    word = torch.tensor([[-3.0]])
    for filtered in (keep_top_k(word, 1), keep_top_p(word, 0.1), keep_min_p(word, 1.0), keep_typical(word, 0.1)):
        assert torch.equal(filtered, word)


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**31), words=st.integers(2, 60), k=st.integers(1, 70), p=st.floats(0.01, 0.99),
    banned=st.integers(0, 3),
)  # fmt: skip
def test_what_is_kept_equals_transformers(seed: int, words: int, k: int, p: float, banned: int) -> None:
    from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper, TypicalLogitsWarper

    logits = random_logits(seed, words)
    logits[0, : min(banned, words - 1)] = -INF
    torch.testing.assert_close(keep_top_k(logits, k), TopKLogitsWarper(k)(None, logits))
    torch.testing.assert_close(keep_top_p(logits, p), TopPLogitsWarper(p)(None, logits))
    torch.testing.assert_close(keep_min_p(logits, p), MinPLogitsWarper(p)(None, logits))
    torch.testing.assert_close(keep_typical(logits, p), TypicalLogitsWarper(p)(None, logits))


# Penalties and bans


def test_repetition_divides_what_is_positive_and_multiplies_what_is_negative_once() -> None:
    logits = torch.tensor([[2.0, -2.0, 3.0, -3.0]])
    history = torch.tensor([[0, 1, 1, 0]])
    assert penalize_repetition(logits, history, 2.0).tolist() == [[1.0, -4.0, 3.0, -3.0]]


def test_frequency_counts_and_presence_does_not() -> None:
    logits = torch.zeros(2, 3)
    new = torch.tensor([[0, 0, 2], [1, 1, 1]])
    assert penalize_frequency(logits, new, 0.5, 0.25).tolist() == [[-1.25, 0, -0.75], [0, -1.75, 0]]


def test_nothing_new_is_not_penalized() -> None:
    assert torch.equal(penalize_frequency(LOGITS, torch.empty(1, 0, dtype=torch.int64), 1.0, 1.0), LOGITS)


@pytest.mark.parametrize(
    ("size", "banned"), [(1, [True, True, True, False]), (2, [False, False, True, False]), (4, [False] * 4)]
)
def test_a_run_of_tokens_comes_no_second_time(size: int, banned: list[bool]) -> None:
    history = torch.tensor([[0, 1, 2, 0, 1]])
    assert (ban_repeated_ngrams(LOGITS, history, size) == -INF).tolist() == [banned]


def test_a_word_of_several_tokens_is_banned_after_its_beginning_only() -> None:
    words = torch.tensor([[-1, 3], [0, 1]])
    assert kept(ban_sequences(LOGITS, torch.tensor([[2, 0]]), words)) == [[True, False, True, False]]
    assert kept(ban_sequences(LOGITS, torch.tensor([[0, 2]]), words)) == [[True, True, True, False]]


def test_a_word_longer_than_the_history_is_not_banned() -> None:
    words = torch.tensor([[0, 2, 1]])
    assert torch.equal(ban_sequences(LOGITS, torch.tensor([[2]]), words), LOGITS)
    assert kept(ban_sequences(LOGITS, torch.tensor([[0, 2]]), words)) == [[True, False, True, True]]


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 2**31), words=st.integers(3, 8), length=st.integers(3, 20), size=st.integers(1, 4),
    penalty=st.floats(0.5, 2.0), data=st.data(),
)  # fmt: skip
def test_penalties_and_bans_equal_transformers(
    seed: int, words: int, length: int, size: int, penalty: float, data: st.DataObject
) -> None:
    from transformers import (
        NoBadWordsLogitsProcessor,
        NoRepeatNGramLogitsProcessor,
        RepetitionPenaltyLogitsProcessor,
    )

    logits, history = random_logits(seed, words), random_history(seed, words, length)
    expected = RepetitionPenaltyLogitsProcessor(penalty)(history, logits)
    torch.testing.assert_close(penalize_repetition(logits, history, penalty), expected, rtol=0, atol=0)
    expected = NoRepeatNGramLogitsProcessor(size)(history, logits)
    torch.testing.assert_close(ban_repeated_ngrams(logits, history, size), expected, rtol=0, atol=0)
    # transformers heeds a word only where the history is as long as all of it.
    tokens = st.lists(st.integers(0, words - 1), min_size=1, max_size=3)
    bad = data.draw(st.lists(tokens, min_size=1, max_size=4))
    padded = torch.tensor([[-1] * (3 - len(word)) + word for word in bad])
    expected = NoBadWordsLogitsProcessor(bad)(history, logits)
    torch.testing.assert_close(ban_sequences(logits, history, padded), expected, rtol=0, atol=0)


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 2**31), length=st.integers(1, 8), padding=st.integers(1, 5), size=st.integers(1, 4)
)  # fmt: skip
def test_padding_on_the_left_says_nothing(seed: int, length: int, padding: int, size: int) -> None:
    logits, history = random_logits(seed, 4), random_history(seed, 4, length)
    padded = torch.nn.functional.pad(history, (padding, 0), value=-1)
    words = torch.tensor([[-1, -1, 0], [-1, 1, 2], [3, 3, 1]])
    assert torch.equal(penalize_repetition(logits, padded, 1.5), penalize_repetition(logits, history, 1.5))
    assert torch.equal(ban_repeated_ngrams(logits, padded, size), ban_repeated_ngrams(logits, history, size))
    assert torch.equal(ban_sequences(logits, padded, words), ban_sequences(logits, history, words))


def test_filters_leave_their_logits_as_they_were() -> None:
    logits, history = LOGITS.clone(), torch.tensor([[1, 1, 1]])
    keep_top_k(logits, 1)
    keep_top_p(logits, 0.1)
    keep_min_p(logits, 0.9)
    keep_typical(logits, 0.1)
    penalize_repetition(logits, history, 2.0)
    penalize_frequency(logits, history, 1.0, 1.0)
    ban_repeated_ngrams(logits, history, 2)
    ban_sequences(logits, history, torch.tensor([[1, 2]]))
    assert torch.equal(logits, LOGITS)
