"""The draws of the C code are those of PyTorch."""

import math
from typing import Any

import pytest
import torch
from builders import distribution
from torch import Tensor

from minigpt.config import SamplingConfig
from minigpt.generation.sampling import Sampler
from minigpt.native import compiled
from minigpt.native.operations import draw_tokens
from minigpt.tokenizer.tokenizer import Tokenizer

NOTHING = torch.empty(1, 0, dtype=torch.int64)


def sampler(tokenizer: Tokenizer | None = None, **changes: Any) -> Sampler:
    """A sampler without filters, except for these settings."""
    return Sampler(SamplingConfig(**{"temperature": 1, "top_p": 1, "seed": 0} | changes), tokenizer)


def random_logits(seed: int, rows: int, v: int) -> Tensor:
    return torch.randn(rows, v, generator=torch.Generator().manual_seed(seed)) * 3


TRUNCATIONS: list[dict[str, Any]] = [
    {}, {"top_p": 0.95}, {"top_p": 0.3}, {"top_k": 1}, {"top_k": 40}, {"top_k": 5000}, {"min_p": 0.02},
    {"top_k": 200, "top_p": 0.9}, {"top_p": 0.99, "min_p": 0.01}, {"top_k": 50, "top_p": 0.8, "min_p": 0.1},
    {"top_k": 5000, "top_p": 0.8, "min_p": 0.1},
]  # fmt: skip
needs_c = pytest.mark.skipif(compiled.library() is None, reason="the C code is not compiled")


def draw_in_c(choices: Sampler, logits: Tensor, numbers: list[float]) -> list[int]:
    config = choices.config
    drawn = draw_tokens(logits, numbers, choices.temperature, config.top_k, config.top_p, config.min_p)
    assert drawn is not None
    return drawn.tolist()


@needs_c
@pytest.mark.parametrize("changes", TRUNCATIONS)
@pytest.mark.parametrize(("v", "temperature"), [(1, 0.8), (64, 50.0), (2003, 0.8), (50_257, 0.8)])
def test_the_c_code_draws_what_pytorch_draws(changes: dict[str, Any], v: int, temperature: float) -> None:
    n = 20
    logits, numbers = random_logits(v, n, v), torch.rand(n, generator=torch.Generator().manual_seed(v)).tolist()
    logits[:, ::3] = logits[:, ::3].bfloat16().float()  # some are equal
    logits[:5, 4:20] = -math.inf
    choices = sampler(temperature=temperature, **changes)
    drawn = draw_in_c(choices, logits, numbers)
    tolerance = 1e-4 if temperature > 10 else 1e-5  # of tokens that are nearly as likely, the order may differ
    expected = distribution(choices, logits, NOTHING, 0)  # (n, V)
    for row, (token, number) in enumerate(zip(drawn, numbers, strict=True)):
        ids = expected[row].nonzero().flatten()
        assert token in ids
        if changes:  # the most likely first, of equal ones the one with the lower id
            ids = ids[logits[row][ids].sort(descending=True, stable=True).indices]
        ends = expected[row][ids].double().cumsum(0)
        at = ids.tolist().index(token)
        assert (ends[at - 1] if at else 0) - tolerance <= number <= ends[at] + tolerance
    assert [draw_in_c(choices, logits[row : row + 1], [numbers[row]])[0] for row in range(n)] == drawn


@needs_c
@pytest.mark.parametrize("temperature", [101.0, 1e45, 1e300])
def test_the_highest_temperatures_are_left_to_pytorch(temperature: float) -> None:
    logits = random_logits(1, 50, 4)
    logits[:, 1] = -math.inf
    assert draw_tokens(logits, [0.5] * 50, temperature, None, 0.9, 0) is None
    assert sampler(temperature=temperature).choose(logits, NOTHING, 0).unique().tolist() == [0, 2, 3]


@needs_c
@pytest.mark.parametrize("changes", [{"top_k": 40}, {"top_p": 0.95}, {"min_p": 0.02}])
def test_of_equal_logits_both_draw_the_same_token(changes: dict[str, Any]) -> None:
    logits, numbers = random_logits(3, 100, 2000).round(), [(i + 0.5) / 100 for i in range(100)]
    choices = sampler(**changes)
    expected = choices._draw(logits, numbers, k=2000)
    assert int((expected == torch.tensor(draw_in_c(choices, logits, numbers))).sum()) >= 99


@needs_c
@pytest.mark.parametrize("changes", TRUNCATIONS)
@pytest.mark.parametrize("number", [0.0, 0.5, 1 - 2**-53])
def test_the_c_code_never_draws_a_token_without_probability(changes: dict[str, Any], number: float) -> None:
    logits = torch.full((1, 100), -math.inf)
    logits[0, [10, 50, 90]] = torch.tensor([3e38, 3e38, -3e38])
    assert draw_in_c(sampler(**changes), logits, [number]) == [10 if number < 0.5 else 50]
