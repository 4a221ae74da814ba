"""The evaluation protocol against the plainest loop that could be written."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.analysis.evaluation import evaluate
from minigpt.config import GPTConfig
from minigpt.errors import ConfigError, DataError
from minigpt.model.gpt import GPT

torch.manual_seed(0)
MODEL = GPT(GPTConfig(vocab_size=30, n_positions=12, n_embd=16, n_layer=2, n_head=2)).eval()


def plain_loss(tokens: list[int], context: int, stride: int) -> tuple[float, int]:
    """Hugging Face's sliding window (docs: Perplexity of fixed-length models), a token at a time."""
    total, count, scored_to = 0.0, 0, 0
    start = 0
    while scored_to < len(tokens) - 1:
        window = torch.tensor(tokens[start : start + context])
        log_probabilities = MODEL(window[None])[0].double().log_softmax(-1)
        for position in range(len(window)):
            target = start + position + 1
            if scored_to < target < len(tokens):
                total -= log_probabilities[position, tokens[target]].item()
                count += 1
                scored_to = target
        start += stride
    return total / count, count


@settings(deadline=None, max_examples=30)
@given(
    tokens=st.lists(st.integers(0, 29), min_size=2, max_size=60), context=st.integers(1, 12), data=st.data()
)  # fmt: skip
def test_every_token_is_scored_once_as_the_plain_loop_does(
    tokens: list[int], context: int, data: st.DataObject
) -> None:
    stride = data.draw(st.integers(1, context))
    loss, count = plain_loss(tokens, context, stride)
    measured = evaluate(MODEL, tokens, context=context, stride=stride)
    assert measured.tokens == count == len(tokens) - 1
    assert measured.loss == pytest.approx(loss, rel=1e-5)


def test_bits_per_byte_count_the_scored_text_only() -> None:
    tokens = [29, 1, 2, 3, 29]
    lengths = np.array([0, 2, 3, 4, *([1] * 25), 0])
    measured = evaluate(MODEL, tokens, token_lengths=lengths)
    assert measured.bytes == 2 + 3 + 4
    assert measured.bits_per_byte == pytest.approx(measured.loss * 4 / math.log(2) / 9)


def test_a_limit_reads_evenly_spaced_windows_always_the_same() -> None:
    tokens = np.arange(12 * 20 + 1) % 30
    few = evaluate(MODEL, tokens, max_tokens=48)
    assert few.tokens == 48
    starts = [0, 60, 120, 180]
    expected = [evaluate(MODEL, tokens[start : start + 13]).loss for start in starts]
    assert few.loss == pytest.approx(sum(expected) / 4, rel=1e-5)


def test_dropout_is_off_and_the_mode_comes_back() -> None:
    model = GPT(MODEL.config.replace(dropout=0.5))
    model.load_state_dict(MODEL.state_dict())
    model.train()
    assert evaluate(model, [1, 2, 3, 4]).loss == pytest.approx(evaluate(MODEL, [1, 2, 3, 4]).loss)
    assert model.training


@pytest.mark.parametrize(("context", "stride"), [(13, 1), (0, 1), (5, 6), (5, 0)])
def test_a_protocol_that_does_not_fit_is_refused(context: int, stride: int) -> None:
    with pytest.raises(ConfigError, match="must be from 1 to"):
        evaluate(MODEL, [1, 2, 3], context=context, stride=stride)


def test_one_token_cannot_be_evaluated() -> None:
    with pytest.raises(DataError, match="a text of 1 tokens"):
        evaluate(MODEL, [1])
