"""Beam search against transformers' and against an exhaustive search."""

import itertools
import math

import pytest
import torch
from builders import new_model
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.config import SamplingConfig
from minigpt.errors import ConfigError, GenerationError
from minigpt.generation.decoding import Decoder
from minigpt.generation.engine import Engine
from minigpt.generation.sampling import Sampler
from minigpt.model.gpt import GPT
from minigpt.search.beam_search import beam_search
from minigpt.storage.huggingface import config_to_huggingface, to_huggingface
from minigpt.tokenizer.tokenizer import Tokenizer


def sharp_model(vocab_size: int, seed: int, n_positions: int = 32) -> GPT:
    """A model whose next tokens depend on the context and are far from equally likely."""
    return new_model(seed=seed, scale=6, vocab_size=vocab_size, n_positions=n_positions)


def search(model: GPT, prompt: list[int], *end_ids: int, **changes: object) -> list[tuple[float, list[int]]]:
    config = SamplingConfig(**changes)  # type: ignore[arg-type]
    return beam_search(Engine(model), prompt, config, Sampler(config), end_ids)


@settings(deadline=None, max_examples=15, derandomize=True)
@given(
    seed=st.integers(0, 2**31), beams=st.integers(2, 6), length=st.integers(1, 12),
    penalty=st.sampled_from([-1.0, 0.0, 0.6, 1.0, 2.0]), repetition=st.sampled_from([1.0, 1.4]),
    ngram=st.integers(0, 3), ends=st.sampled_from([(12,), (12, 11), (12, 11, 10)]),
)  # fmt: skip
def test_beams_equal_those_of_transformers(
    seed: int, beams: int, length: int, penalty: float, repetition: float, ngram: int, ends: tuple[int, ...]
) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    vocab_size, prompt = 13, [3, 1, 4]
    model = sharp_model(vocab_size, seed)
    model.token_embedding.weight.data[list(ends)] *= 2  # so that the ends occur often
    theirs = GPT2LMHeadModel(
        GPT2Config(**config_to_huggingface(model.config, end_of_text=ends[0], dtype=torch.float32))
    ).eval()
    missing = theirs.load_state_dict(to_huggingface(model), strict=False).missing_keys
    assert set(missing) <= {"lm_head.weight"}
    theirs.tie_weights()
    found = theirs.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, 3), max_new_tokens=length, do_sample=False,
        num_beams=beams, num_return_sequences=beams, length_penalty=penalty, early_stopping=False,
        repetition_penalty=repetition, no_repeat_ngram_size=ngram, eos_token_id=list(ends), pad_token_id=ends[0],
        return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    ours = search(
        model, prompt, *ends, max_new_tokens=length, beams=beams, length_penalty=penalty,
        repetition_penalty=repetition, no_repeat_ngram_size=ngram,
    )  # fmt: skip
    expected = []
    for row, score in zip(found.sequences.tolist(), found.sequences_scores.tolist(), strict=True):
        if score > -1e8:  # transformers pads its result with impossible sequences
            new = row[len(prompt) :]
            size = next((at + 1 for at, id in enumerate(new) if id in ends), len(new))
            expected.append((score, new[:size]))
    assert [ids for _, ids in ours] == [ids for _, ids in expected]
    assert [score for score, _ in ours] == pytest.approx([score for score, _ in expected], rel=1e-4)


@torch.no_grad()
def all_sequences(model: GPT, prompt: list[int], end_of_text: int, length: int) -> dict[tuple[int, ...], float]:
    """All sequences that end with end-of-text or have this length, and their log-probabilities."""
    sequences = {}
    for size in range(1, length + 1):
        for sequence in itertools.product(range(model.config.vocab_size), repeat=size):
            if end_of_text in sequence[:-1] or (size < length and sequence[-1] != end_of_text):
                continue
            log_probability = model(torch.tensor([prompt + list(sequence)]))[0].double().log_softmax(-1)
            sequences[sequence] = sum(
                float(log_probability[len(prompt) - 1 + at, id]) for at, id in enumerate(sequence)
            )
    return sequences


@pytest.mark.parametrize("penalty", [-0.5, 0.0, 1.0])
def test_with_enough_beams_every_sequence_is_found_in_the_order_of_its_score(penalty: float) -> None:
    model, prompt, length = sharp_model(3, seed=4), [0, 1], 4
    sequences = all_sequences(model, prompt, 2, length)
    assert math.fsum(math.exp(log_probability) for log_probability in sequences.values()) == pytest.approx(1)
    ordered = sorted(sequences, key=lambda sequence: -sequences[sequence] / len(sequence) ** penalty)
    found = search(model, prompt, 2, max_new_tokens=length, beams=len(sequences) + 1, length_penalty=penalty)
    assert [tuple(ids) for _, ids in found] == ordered
    expected = [sequences[sequence] / len(sequence) ** penalty for sequence in ordered]
    assert [score for score, _ in found] == pytest.approx(expected, rel=1e-4)


def test_bans_apply_to_beams() -> None:
    tokenizer, model = Tokenizer.named("bytes"), sharp_model(257, seed=3)
    config = SamplingConfig(
        max_new_tokens=6, beams=3, min_new_tokens=6, no_repeat_ngram_size=1, logit_bias=("#256=100",)
    )
    found = beam_search(Engine(model), [1], config, Sampler(config, tokenizer), (256,))
    for _, ids in found:
        assert len(ids) == 6
        assert len({1, *ids}) == 7
        assert 256 not in ids


def test_a_search_stops_when_no_sequence_can_exceed_the_finished_ones() -> None:
    model, config = sharp_model(5, seed=0), SamplingConfig(max_new_tokens=20, beams=2, logit_bias=("#4=9",))
    engine = Engine(model)
    found = beam_search(engine, [1], config, Sampler(config), (4,))
    assert [ids[-1] for _, ids in found] == [4, 4]
    assert engine.length < 5


def test_a_search_between_the_turns_of_a_decoder_changes_neither_text() -> None:
    engine, drawn = Engine(sharp_model(20, seed=1).double()), SamplingConfig(temperature=1.0, seed=2)
    config = SamplingConfig(max_new_tokens=8, beams=3)
    expected = beam_search(engine, [5], config, Sampler(config), (19,))
    alone, decoder = (Decoder(engine, [[1, 2]], Sampler(drawn)) for _ in range(2))
    for _ in range(12):
        alone.advance()
    for _ in range(12):
        decoder.advance()
        assert beam_search(engine, [5], config, Sampler(config), (19,)) == expected
    assert decoder.tokens == alone.tokens


def test_beam_search_has_no_sliding_window() -> None:
    model = sharp_model(5, seed=0, n_positions=8)
    assert len(search(model, [1, 2, 3], 4, max_new_tokens=5, beams=2)) == 2
    with pytest.raises(ConfigError) as caught:
        search(model, [1, 2, 3, 0], 4, max_new_tokens=5, beams=2)
    assert str(caught.value) == (
        "with beams, the prompt's tokens (4) and max_new_tokens (5) must fit into the context (8) together; give a "
        "--max-new-tokens of at most 4"
    )
    with pytest.raises(ConfigError, match=r"tokens \(8\) and .* the context \(8\) together; shorten the prompt$"):
        search(model, 4 * [1, 2], 4, max_new_tokens=1, beams=2)


def test_bans_that_leave_no_token_later_keep_the_finished_sequences() -> None:
    found = search(sharp_model(3, seed=0), [0], 2, max_new_tokens=4, beams=4, no_repeat_ngram_size=1)
    assert sorted(ids for _, ids in found) == [[1, 2], [2]]


def test_nan_logits_are_an_error() -> None:
    model = sharp_model(5, seed=0)
    model.final_norm.weight.data[0] = math.nan
    with pytest.raises(GenerationError, match="logits must be finite"):
        search(model, [1], 4, max_new_tokens=3, beams=2)


def test_the_callers_processors_apply_to_beams() -> None:
    def no_token_twice(logits: torch.Tensor, history: torch.Tensor, _n_new: int) -> torch.Tensor:
        return logits.scatter(1, history, -math.inf)

    model, config = sharp_model(20, seed=1), SamplingConfig(max_new_tokens=8, beams=3)
    found = beam_search(Engine(model), [5], config, Sampler(config, processors=[no_token_twice]), (19,))
    same = beam_search(Engine(model), [5], config, Sampler(config.replace(no_repeat_ngram_size=1)), (19,))
    assert found == same
    assert found != beam_search(Engine(model), [5], config, Sampler(config), (19,))
