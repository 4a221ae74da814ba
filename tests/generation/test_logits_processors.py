"""Each logits processor on four tokens by hand, and against its counterpart in transformers on random logits."""

import doctest
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minigpt.generation import logits_processors
from minigpt.generation.logits_processors import (
    BanTokens,
    MinNewTokens,
    min_p,
    top_k,
    top_p,
    typical_p,
)

LOGITS = torch.tensor([[0.1, 0.4, 0.2, 0.3]]).log()
INF = math.inf


def kept(logits: Tensor) -> list[list[bool]]:
    return logits.isfinite().tolist()


def random_logits(seed: int, v: int, rows: int = 3) -> Tensor:
    return torch.randn(rows, v, generator=torch.Generator().manual_seed(seed)) * 3


# Filters


def test_top_p_of_the_most_likely_tokens_depends_on_the_probability_that_they_hold() -> None:
    logits = top_p(LOGITS.expand(2, 4), 0.39, torch.tensor([[1.0], [0.39 / 0.71]]))
    assert kept(logits) == [[False, True, False, False], [False, True, True, True]]


@pytest.mark.parametrize("p", [1e-45, 1e-320, 5e-324])  # 0 in float32, and at its end
def test_a_tiny_p_keeps_the_first_token(p: float) -> None:
    assert kept(top_p(LOGITS, p)) == [[False, True, False, False]]
    assert kept(typical_p(LOGITS, p)) == [[False, False, False, True]]


def test_typical_p_ignores_forbidden_tokens() -> None:
    logits = torch.cat([torch.tensor([[-INF]]), LOGITS, torch.tensor([[-INF]])], dim=1)
    assert kept(typical_p(logits, 0.31)) == [[False, False, False, True, True, False]]


def test_ties_with_the_last_token_kept_are_kept() -> None:
    logits = torch.tensor([[0.0, 1.0, 1.0, 1.0, -1.0]])
    for filtered in (top_k(logits, 2), top_p(logits, 0.5), typical_p(logits, 0.1)):
        assert kept(filtered) == [[False, True, True, True, False]]


def test_a_vocabulary_of_one_token_keeps_it() -> None:
    only = torch.tensor([[-3.0]])
    for filtered in (top_k(only, 1), top_p(only, 0.1), min_p(only, 1.0), typical_p(only, 0.1)):
        assert torch.equal(filtered, only)


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**31), v=st.integers(2, 60), k=st.integers(1, 70), p=st.floats(0.01, 0.99),
    banned=st.integers(0, 3),
)  # fmt: skip
def test_filters_equal_those_of_transformers(seed: int, v: int, k: int, p: float, banned: int) -> None:
    from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper, TypicalLogitsWarper

    logits = random_logits(seed, v)
    logits[0, : min(banned, v - 1)] = -INF
    torch.testing.assert_close(top_k(logits, k), TopKLogitsWarper(k)(None, logits))
    torch.testing.assert_close(top_p(logits, p), TopPLogitsWarper(p)(None, logits))
    torch.testing.assert_close(min_p(logits, p), MinPLogitsWarper(p)(None, logits))
    torch.testing.assert_close(typical_p(logits, p), TypicalLogitsWarper(p)(None, logits))


def test_no_filter_changes_its_arguments() -> None:
    logits = LOGITS.clone()
    history = torch.tensor([[1, 1, 1]])
    filters = [
        lambda logits, *_: top_k(logits, 1), lambda logits, *_: top_p(logits, 0.1),
        lambda logits, *_: min_p(logits, 0.9), lambda logits, *_: typical_p(logits, 0.1), BanTokens([1]),
        MinNewTokens(5, end_ids=(0,)),
    ]  # fmt: skip
    for each in filters:
        assert not torch.equal(each(logits, history, 3), LOGITS)
        assert torch.equal(logits, LOGITS)


def test_the_example_in_the_docstring_works() -> None:
    failures, tests = doctest.testmod(logits_processors)
    assert (failures, tests > 0) == (0, True)
