"""The evaluation protocol, against a simple loop over single tokens."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from builders import assert_restores_the_mode, new_model
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.errors import ConfigError, DataError
from minigpt.evaluation import perplexity
from minigpt.evaluation.breakdown import break_down
from minigpt.evaluation.perplexity import evaluate
from minigpt.model.gpt import GPT

MODEL = new_model(vocab_size=30, n_positions=12)


def simple_losses(tokens: list[int], context: int, stride: int) -> list[list[tuple[int, float, bool]]]:
    """Hugging Face's sliding window (docs: Perplexity of fixed-length models), a token at a time.

    For each window: (index of the token, loss, whether no earlier window has scored it).
    """
    found, scored_to, start = [], 0, 0
    while scored_to < len(tokens) - 1:
        window = torch.tensor(tokens[start : start + context])
        log_probabilities = MODEL(window[None])[0].double().log_softmax(-1)
        found.append([])
        for position in range(len(window)):
            target = start + position + 1
            if target < len(tokens):
                loss = -log_probabilities[position, tokens[target]].item()
                found[-1].append((target, loss, target > scored_to))
        scored_to = start + len(found[-1])
        start += stride
    return found


def simple_loss(tokens: list[int], context: int, stride: int) -> tuple[float, int]:
    losses = [loss for window in simple_losses(tokens, context, stride) for _, loss, is_new in window if is_new]
    return sum(losses) / len(losses), len(losses)


@settings(deadline=None, max_examples=30)
@given(
    tokens=st.lists(st.integers(0, 29), min_size=2, max_size=60), context=st.integers(1, 12), data=st.data()
)  # fmt: skip
def test_every_token_is_scored_once_as_in_the_simple_loop(tokens: list[int], context: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, context))
    loss, count = simple_loss(tokens, context, stride)
    measured = evaluate(MODEL, tokens, context=context, stride=stride)
    assert measured.tokens == count == len(tokens) - 1
    assert measured.loss == pytest.approx(loss, rel=1e-5)


def test_bits_per_byte_count_only_the_scored_text() -> None:
    tokens = [29, 1, 2, 3, 29]
    lengths = np.array([0, 2, 3, 4, *([1] * 25), 0])
    measured = evaluate(MODEL, tokens, token_lengths=lengths)
    assert measured.bytes == 2 + 3 + 4
    assert measured.bits_per_byte == pytest.approx(measured.loss * 4 / math.log(2) / 9)


def test_a_token_limit_evaluates_the_same_evenly_spaced_windows() -> None:
    tokens = np.arange(12 * 20 + 1) % 30
    few = evaluate(MODEL, tokens, max_tokens=48)
    assert few.tokens == 48
    starts = [0, 60, 120, 180]
    expected = [evaluate(MODEL, tokens[start : start + 13]).loss for start in starts]
    assert few.loss == pytest.approx(sum(expected) / 4, rel=1e-5)


def test_dropout_is_off_and_the_training_mode_is_restored() -> None:
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


def test_a_text_is_evaluated_as_token_ids_only() -> None:
    text: Any = "a text"
    with pytest.raises(ConfigError, match=r"not a text; give tokenizer\.encode\(text\)"):
        evaluate(MODEL, text)


END = 29
LENGTHS = np.array([*([1, 2, 3] * 9), 1, 2, 0])


@pytest.mark.parametrize(("context", "stride"), [(12, 12), (12, 5), (7, 1), (3, 3)])
@pytest.mark.parametrize("batch_size", [None, 1, 3])
def test_documents_and_positions_equal_those_of_the_simple_loop(
    context: int, stride: int, batch_size: int | None
) -> None:
    tokens = [*range(10), END, END, *range(20), END, 3, END]
    simple = simple_losses(tokens, context, stride)
    parts = break_down(
        MODEL,
        tokens,
        end_of_text=END,
        token_lengths=LENGTHS,
        context=context,
        stride=stride,
        batch_size=batch_size,
        by_position=True,
    )
    assert parts.tokens.tolist() == [10, 1, 21, 2]
    for document, (first, last) in enumerate([(1, 10), (11, 11), (12, 32), (33, 34)]):
        losses = [loss for window in simple for target, loss, new in window if new and first <= target <= last]
        part = parts.document(document)
        assert part.loss == pytest.approx(sum(losses) / len(losses), abs=1e-5)
        assert part.bytes == sum(LENGTHS[token] for token in tokens[first : last + 1])
    for position, loss in enumerate(parts.position_losses()[: len(simple[0])]):
        there = [window[position][1] for window in simple if position < len(window)]
        assert parts.position_tokens[position] == len(there)
        assert loss == pytest.approx(sum(there) / len(there), abs=1e-5)
    whole = evaluate(MODEL, tokens, token_lengths=LENGTHS, context=context, stride=stride)
    assert parts.whole.loss == pytest.approx(whole.loss, abs=1e-6)
    assert (parts.whole.tokens, parts.whole.bytes) == (whole.tokens, whole.bytes)


@pytest.mark.parametrize("stride", [4, 3])
def test_evenly_spaced_windows_are_those_with_scored_tokens(stride: int) -> None:
    tokens, scored = [id % 30 for id in range(40)], np.zeros(40, bool)
    scored[[0, 13]] = True  # nothing predicts the first token
    some = evaluate(MODEL, tokens, context=4, stride=stride, max_tokens=8, scored=scored)
    every = evaluate(MODEL, tokens, context=4, stride=stride, scored=scored)
    assert (some.tokens, some.loss) == (1, pytest.approx(every.loss, abs=1e-6))
    scored[:] = True
    assert (
        evaluate(MODEL, tokens, context=4, stride=stride, max_tokens=8, scored=scored).loss
        == evaluate(MODEL, tokens, context=4, stride=stride, max_tokens=8).loss
    )
    with pytest.raises(DataError, match="no token of the evaluated text is scored"):
        evaluate(MODEL, tokens, context=4, stride=stride, max_tokens=8, scored=~scored)


def test_a_stream_without_an_end_of_text_is_one_document() -> None:
    parts = break_down(MODEL, [1, 2, 3], end_of_text=END, token_lengths=LENGTHS)
    assert parts.tokens.tolist() == [2]
    assert len(parts.position_tokens) == 0


def test_an_end_of_text_at_the_beginning_lets_the_first_token_be_scored_and_is_no_document() -> None:
    text = [1, 2, 3, END, 4, 5, END]
    parts = break_down(MODEL, [END, *text], end_of_text=END, token_lengths=LENGTHS)
    assert parts.tokens.tolist() == [4, 3]
    assert parts.bytes.tolist() == [sum(LENGTHS[[1, 2, 3]]), sum(LENGTHS[[4, 5]])]
    assert parts.whole.loss == pytest.approx(simple_loss([END, *text], 12, 12)[0], rel=1e-5)


def test_a_start_of_text_after_the_last_document_is_no_document() -> None:
    start = 1
    stream = [start, 2, 3, END, start, 4, END, start]
    parts = break_down(MODEL, stream, end_of_text=END, start_of_text=start, token_lengths=LENGTHS)
    assert parts.tokens.tolist() == [3, 4]
    assert parts.tokens.sum() == parts.whole.tokens == len(stream) - 1
    longer = break_down(MODEL, [*stream, 4], end_of_text=END, start_of_text=start, token_lengths=LENGTHS)
    assert longer.tokens.tolist() == [3, 3, 2]


def test_the_training_mode_is_restored_after_an_error() -> None:
    assert_restores_the_mode(lambda model: evaluate(model, [1, 2, 3]))
    assert_restores_the_mode(lambda model: break_down(model, [1, 2, 3], end_of_text=END, token_lengths=LENGTHS))


def test_progress_ends_with_all_windows() -> None:
    calls: list[tuple[int, int]] = []
    evaluate(MODEL, np.arange(100) % 30, stride=10, batch_size=3, progress=lambda *done: calls.append(done))
    assert calls == [(3, 10), (6, 10), (9, 10), (10, 10)]


@pytest.mark.parametrize("in_memory", [7, 8, 299, 1000])
@pytest.mark.parametrize("in_cache", [1, 3, 1000])
def test_the_loss_does_not_depend_on_the_slices_of_the_logits(
    in_memory: int, in_cache: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = np.arange(300) * 7 % 30
    lengths = np.ones(30, dtype=np.int64)
    expected = evaluate(MODEL, tokens).loss
    nats = break_down(MODEL, tokens, end_of_text=29, token_lengths=lengths).nats
    monkeypatch.setattr(perplexity, "_MOST_LOGITS", in_memory * 30)
    monkeypatch.setattr(perplexity, "_CACHED_LOGITS", in_cache * 30 // torch.get_num_threads())
    assert evaluate(MODEL, tokens).loss == pytest.approx(expected, rel=1e-6)
    assert break_down(MODEL, tokens, end_of_text=29, token_lengths=lengths).nats == pytest.approx(nats, rel=1e-4)


def test_the_head_is_applied_to_scored_tokens_only(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    real = perplexity.sliced_logits

    def counted(model: GPT, features: torch.Tensor) -> Any:
        rows.append(len(features))
        return real(model, features)

    monkeypatch.setattr(perplexity, "sliced_logits", counted)
    measured = evaluate(MODEL, np.arange(300) % 30, context=12, stride=2)
    assert sum(rows) == measured.tokens == 299
