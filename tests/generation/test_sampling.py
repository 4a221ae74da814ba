"""The filters on distributions small enough to work out by hand, and against transformers on random ones."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.config import SamplingConfig
from minigpt.generation.sampling import choose, keep_top_k, keep_top_p, next_token_distribution

LOGITS = torch.tensor([[0.1, 0.4, 0.2, 0.3]]).log()


def test_top_k_keeps_the_k_likeliest() -> None:
    assert keep_top_k(LOGITS, 2).isfinite().tolist() == [[False, True, False, True]]


def test_top_k_above_the_vocabulary_keeps_everything() -> None:
    assert torch.equal(keep_top_k(LOGITS, 50), LOGITS)


@pytest.mark.parametrize(
    ("p", "kept"),
    [
        (0.39, [False, True, False, False]),
        (0.41, [False, True, False, True]),
        (0.71, [False, True, True, True]),
        (1e-9, [False, True, False, False]),
    ],
)
def test_top_p_keeps_the_smallest_set_that_holds_p(p: float, kept: list[bool]) -> None:
    assert keep_top_p(LOGITS, p).isfinite().tolist() == [kept]


@settings(deadline=None, max_examples=50)
@given(
    seed=st.integers(0, 2**31), words=st.integers(2, 60), k=st.integers(1, 70), p=st.floats(0.01, 0.99),
    temperature=st.floats(0.1, 3.0),
)  # fmt: skip
def test_filters_equal_those_of_transformers(seed: int, words: int, k: int, p: float, temperature: float) -> None:
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    logits = torch.randn(3, words, generator=torch.Generator().manual_seed(seed)) * 3
    expected = logits
    for warper in (TemperatureLogitsWarper(temperature), TopKLogitsWarper(k), TopPLogitsWarper(p)):
        expected = warper(None, expected)
    config = SamplingConfig(temperature=temperature, top_k=k, top_p=p)
    torch.testing.assert_close(next_token_distribution(logits, config), expected.softmax(-1), rtol=1e-4, atol=1e-6)


def test_temperature_zero_takes_the_likeliest_whatever_the_seed() -> None:
    config = SamplingConfig(temperature=0)
    assert choose(LOGITS, config, torch.Generator().manual_seed(3)).tolist() == [1]
    assert next_token_distribution(LOGITS, config).tolist() == [[0, 1, 0, 0]]


def test_the_smallest_temperature_is_greedy_and_overflows_nothing() -> None:
    logits = torch.tensor([[-70.0, -69.0, -69.5]])
    assert choose(logits, SamplingConfig(temperature=1e-40), torch.Generator().manual_seed(0)).tolist() == [1]


def test_draws_follow_the_distribution() -> None:
    config = SamplingConfig(temperature=1, top_p=1)
    draws = choose(LOGITS.expand(20_000, 4), config, torch.Generator().manual_seed(0))
    observed = torch.bincount(draws, minlength=4) / 20_000
    torch.testing.assert_close(observed, LOGITS.exp()[0], rtol=0, atol=4 * math.sqrt(0.25 / 20_000))


def test_the_same_seed_draws_the_same_token() -> None:
    logits = torch.zeros(5, 1000)
    config = SamplingConfig()
    first = choose(logits, config, torch.Generator().manual_seed(7))
    assert torch.equal(first, choose(logits, config, torch.Generator().manual_seed(7)))
    assert not torch.equal(first, choose(logits, config, torch.Generator().manual_seed(8)))
