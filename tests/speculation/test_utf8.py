"""Speculative decoding writes UTF-8."""

import pytest
from builders import new_model
from writing import REPLACEMENT, SAMPLERS, TOKENIZERS, untrained, written

from minigpt.generation.engine import Engine
from minigpt.speculation.drafters import DraftModel, PromptLookup


@pytest.mark.parametrize("sampler", ["greedy", "penalties"])
def test_speculation_is_utf8_and_changes_no_token(always_drafts: None, sampler: str) -> None:
    tokenizer = TOKENIZERS["bpe"]
    engine = Engine(untrained(tokenizer).double())
    draft_model = Engine(new_model(scale=8, seed=1, vocab_size=tokenizer.vocab_size, n_positions=64).double())
    prompt = "雨だった。雨だった。雨"
    expected = written(engine, tokenizer, [prompt], **SAMPLERS[sampler])
    assert REPLACEMENT not in expected[0]
    for drafter in (PromptLookup(), DraftModel(draft_model, tokenizer.vocab_size)):
        assert written(engine, tokenizer, [prompt], drafter=drafter, **SAMPLERS[sampler]) == expected
