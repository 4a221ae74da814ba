"""Each penalty and ban on four tokens by hand, and against its counterpart in transformers on random logits."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from minigpt.config import SamplingConfig
from minigpt.errors import ConfigError
from minigpt.generation.logits_processors import LogitsProcessor
from minigpt.penalties.processors import BadWords, FrequencyPenalty, LogitBias, NoRepeatNGram, RepetitionPenalty

LOGITS = torch.tensor([[0.1, 0.4, 0.2, 0.3]]).log()


def kept(logits: Tensor) -> list[list[bool]]:
    return logits.isfinite().tolist()


def random_logits(seed: int, v: int, rows: int = 3) -> Tensor:
    return torch.randn(rows, v, generator=torch.Generator().manual_seed(seed)) * 3


def random_history(seed: int, v: int, length: int, rows: int = 3) -> Tensor:
    return torch.randint(v, (rows, length), generator=torch.Generator().manual_seed(seed))


def test_the_frequency_penalty_counts_and_the_presence_penalty_does_not() -> None:
    logits = torch.zeros(2, 3)
    new = torch.tensor([[0, 0, 2], [1, 1, 1]])
    assert FrequencyPenalty(0.5, 0.25)(logits, new, 3).tolist() == [[-1.25, 0, -0.75], [0, -1.75, 0]]


def test_a_long_ngram_needs_little_memory() -> None:
    """To compare all the runs of the history at once would take 100 MB."""
    history = torch.arange(20_000)[None]
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        assert kept(NoRepeatNGram(10_000)(LOGITS, history, 0)) == [[True] * 4]
    assert max(event.cpu_memory_usage for event in profiler.events()) < 1_000_000


def test_a_long_bad_word_beside_many_short_ones_needs_little_memory() -> None:
    """Each of many sequences padded to the longest would take the product of their number and its length."""
    processor = BadWords([*([token] for token in range(1000)), [0] * 999 + [1]])
    tensors = [each for each in vars(processor).values() if isinstance(each, Tensor)]
    assert sum(each.numel() for each in tensors) < 10_000
    logits = processor(torch.zeros(1, 2000), torch.zeros(1, 5, dtype=torch.int64), 0)
    assert kept(logits) == [[False] * 1000 + [True] * 1000]


def test_a_bad_word_longer_than_the_history_is_not_banned() -> None:
    sequences = [[0, 2, 1]]
    assert torch.equal(BadWords(sequences)(LOGITS, torch.tensor([[2]]), 0), LOGITS)
    assert kept(BadWords(sequences)(LOGITS, torch.tensor([[0, 2]]), 0)) == [[True, False, True, True]]


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 2**31), v=st.integers(3, 8), length=st.integers(3, 20), size=st.integers(1, 4),
    penalty=st.floats(0.5, 2.0), data=st.data(),
)  # fmt: skip
def test_penalties_and_bans_equal_those_of_transformers(
    seed: int, v: int, length: int, size: int, penalty: float, data: st.DataObject
) -> None:
    from transformers import (
        NoBadWordsLogitsProcessor,
        NoRepeatNGramLogitsProcessor,
        RepetitionPenaltyLogitsProcessor,
    )

    logits, history = random_logits(seed, v), random_history(seed, v, length)
    expected = RepetitionPenaltyLogitsProcessor(penalty)(history, logits)
    torch.testing.assert_close(RepetitionPenalty(penalty)(logits, history, 0), expected, rtol=0, atol=0)
    expected = NoRepeatNGramLogitsProcessor(size)(history, logits)
    torch.testing.assert_close(NoRepeatNGram(size)(logits, history, 0), expected, rtol=0, atol=0)
    # transformers ignores a sequence that is longer than the history.
    tokens = st.lists(st.integers(0, v - 1), min_size=1, max_size=3)
    bad = data.draw(st.lists(tokens, min_size=1, max_size=4))
    expected = NoBadWordsLogitsProcessor(bad)(history, logits)
    torch.testing.assert_close(BadWords(bad)(logits, history, 0), expected, rtol=0, atol=0)


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 2**31), length=st.integers(1, 8), padding=st.integers(1, 5), size=st.integers(1, 4)
)  # fmt: skip
def test_padding_on_the_left_changes_nothing(seed: int, length: int, padding: int, size: int) -> None:
    logits, history = random_logits(seed, 4), random_history(seed, 4, length)
    padded = torch.nn.functional.pad(history, (padding, 0), value=-1)
    sequences = [[0], [1, 2], [3, 3, 1]]
    assert torch.equal(RepetitionPenalty(1.5)(logits, padded, 0), RepetitionPenalty(1.5)(logits, history, 0))
    assert torch.equal(NoRepeatNGram(size)(logits, padded, 0), NoRepeatNGram(size)(logits, history, 0))
    assert torch.equal(BadWords(sequences)(logits, padded, 0), BadWords(sequences)(logits, history, 0))


def test_no_processor_changes_its_arguments() -> None:
    logits, history = LOGITS.clone(), torch.tensor([[1, 1, 1]])
    processors: list[LogitsProcessor] = [
        RepetitionPenalty(2.0), FrequencyPenalty(1.0, 1.0), NoRepeatNGram(2), BadWords([[1, 2]]), LogitBias([(1, 2.0)]),
    ]  # fmt: skip
    for processor in processors:
        assert not torch.equal(processor(logits, history, 3), LOGITS)
        assert torch.equal(logits, LOGITS)
        assert history.tolist() == [[1, 1, 1]]


def test_bad_words_that_are_no_strings_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"bad_words \(\(5,\)\) must be a tuple of strings"):
        SamplingConfig(bad_words=(5,))  # type: ignore[arg-type]
