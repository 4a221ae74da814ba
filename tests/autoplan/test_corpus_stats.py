"""How much of a text is in new words, on which a plan depends."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from minigpt.autoplan import corpus_stats
from minigpt.autoplan.corpus_stats import CorpusStats
from minigpt.tokenizer.tokenizer import Tokenizer

GPT2 = Tokenizer.named("gpt2")


def measured(tokens: list[int], **changed: Any) -> float | None:
    stats = CorpusStats(len(tokens), 4 * len(tokens), GPT2.vocab_size, 2.0, **changed)
    corpus: Any = SimpleNamespace(tokenizer=GPT2, train=np.array(tokens, np.uint16))
    return stats.with_new_words(corpus).new_words


def tokens(*parts: tuple[str, int]) -> list[int]:
    found = [id for text, times in parts for id in GPT2.encode(text) * times]
    assert len(found) == sum(len(text.split()) * times for text, times in parts)  # one token each
    return found


@pytest.mark.parametrize(
    ("rest", "share"), [(" one six one new", 0.25), (" six six six one", 0.0), (" new new old old", 1.0)]
)
def test_new_words_are_counted_in_the_last_tenth_of_the_training_part(rest: str, share: float) -> None:
    assert measured(tokens((" one six", 4500), (rest, 250))) == pytest.approx(share)


def test_a_word_of_several_tokens_is_new_although_its_tokens_are_not() -> None:
    known, new = GPT2.encode(" camp fire wood"), GPT2.encode(" campwood")
    assert set(new) <= {*known, *GPT2.encode("wood")}
    assert measured(known * 3000 + GPT2.encode("wood") * 600 + new * 480) == pytest.approx(1.0, abs=0.1)


def test_new_words_are_not_measured_in_long_texts_without_merges_or_almost_without_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = tokens((" one six", 5000))
    assert measured(text) == 0.0
    assert measured(text, has_merges=False) is None
    assert measured(tokens((" one six", 1000))) is None  # too few letters in its last tenth
    assert measured(GPT2.encode(" +") * 10_000) is None
    monkeypatch.setattr(corpus_stats, "_MOST_TOKENS", len(text) - 1)
    assert measured(text) is None
