"""Beam search against transformers' and against every text there is."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.config import GPTConfig, SamplingConfig
from minigpt.errors import ConfigError, GenerationError
from minigpt.generation.beam_search import beam_search
from minigpt.generation.engines.pytorch import TorchEngine
from minigpt.generation.sampling import Sampler
from minigpt.model.gpt import GPT
from minigpt.storage.huggingface import config_to_huggingface, to_huggingface
from minigpt.tokenizer.tokenizer import Tokenizer


def random_model(vocab_size: int, seed: int, n_positions: int = 32, scale: float = 6) -> GPT:
    """One whose next tokens are far from equally likely and depend on the context."""
    torch.manual_seed(seed)
    model = GPT(GPTConfig(vocab_size=vocab_size, n_positions=n_positions, n_embd=16, n_layer=2, n_head=2))
    for parameter in model.parameters():
        parameter.data.mul_(scale if parameter.dim() == 2 else 1)
    return model.eval()


def search(model: GPT, prompt: list[int], end_of_text: int, **changes: object) -> list[tuple[float, list[int]]]:
    config = SamplingConfig(**changes)  # type: ignore[arg-type]
    return beam_search(TorchEngine(model), prompt, config, Sampler(config), end_of_text)


@settings(deadline=None, max_examples=15, derandomize=True)
@given(
    seed=st.integers(0, 2**31), beams=st.integers(2, 6), length=st.integers(1, 12),
    penalty=st.sampled_from([-1.0, 0.0, 0.6, 1.0, 2.0]), repetition=st.sampled_from([1.0, 1.4]),
    ngram=st.integers(0, 3),
)  # fmt: skip
def test_beams_equal_those_of_transformers(
    seed: int, beams: int, length: int, penalty: float, repetition: float, ngram: int
) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    vocab_size, end_of_text, prompt = 13, 12, [3, 1, 4]
    model = random_model(vocab_size, seed)
    model.token_embedding.weight.data[end_of_text] *= 2  # ends come often enough to matter
    theirs = GPT2LMHeadModel(
        GPT2Config(**config_to_huggingface(model.config, end_of_text=end_of_text, dtype=torch.float32))
    ).eval()
    missing = theirs.load_state_dict(to_huggingface(model), strict=False).missing_keys
    assert set(missing) <= {"lm_head.weight"}
    theirs.tie_weights()
    found = theirs.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, 3), max_new_tokens=length, do_sample=False,
        num_beams=beams, num_return_sequences=beams, length_penalty=penalty, early_stopping=False,
        repetition_penalty=repetition, no_repeat_ngram_size=ngram, eos_token_id=end_of_text, pad_token_id=end_of_text,
        return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    ours = search(
        model, prompt, end_of_text, max_new_tokens=length, beams=beams, length_penalty=penalty,
        repetition_penalty=repetition, no_repeat_ngram_size=ngram,
    )  # fmt: skip
    expected = []
    for row, score in zip(found.sequences.tolist(), found.sequences_scores.tolist(), strict=True):
        if score > -1e8:  # transformers fills up with texts that never were
            new = row[len(prompt) :]
            expected.append((score, new[: new.index(end_of_text) + 1] if end_of_text in new else new))
    assert [ids for _, ids in ours] == [ids for _, ids in expected]
    assert [score for score, _ in ours] == pytest.approx([score for score, _ in expected], rel=1e-4)


@torch.no_grad()
def every_text(model: GPT, prompt: list[int], end_of_text: int, length: int) -> dict[tuple[int, ...], float]:
    """All texts that end with the end of text or have that length, and their log-probabilities."""
    texts = {}
    for size in range(1, length + 1):
        for text in itertools.product(range(model.config.vocab_size), repeat=size):
            if end_of_text in text[:-1] or (size < length and text[-1] != end_of_text):
                continue
            log_probability = model(torch.tensor([prompt + list(text)]))[0].double().log_softmax(-1)
            texts[text] = sum(float(log_probability[len(prompt) - 1 + at, id]) for at, id in enumerate(text))
    return texts


@pytest.mark.parametrize("penalty", [-0.5, 0.0, 1.0])
def test_beams_wide_enough_find_every_text_in_the_order_of_its_score(penalty: float) -> None:
    model, prompt, length = random_model(3, seed=4), [0, 1], 4
    texts = every_text(model, prompt, 2, length)
    assert math.fsum(math.exp(log_probability) for log_probability in texts.values()) == pytest.approx(1)
    ordered = sorted(texts, key=lambda text: -texts[text] / len(text) ** penalty)
    found = search(model, prompt, 2, max_new_tokens=length, beams=len(texts) + 1, length_penalty=penalty)
    assert [tuple(ids) for _, ids in found] == ordered
    expected = [texts[text] / len(text) ** penalty for text in ordered]
    assert [score for score, _ in found] == pytest.approx(expected, rel=1e-4)


def test_one_beam_is_greedy() -> None:
    model = random_model(20, seed=1)
    ((_, ids),) = search(model, [5], 19, max_new_tokens=10, beams=1)
    tokens = [5]
    while len(tokens) < 11 and tokens[-1] != 19:
        tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
    assert ids == tokens[1:]


def test_ids_beyond_the_tokenizers_are_never_used() -> None:
    model = random_model(20, seed=2)
    model.token_embedding.weight.data[15:] *= 20
    config = SamplingConfig(max_new_tokens=8, beams=3)
    found = beam_search(TorchEngine(model), [1], config, Sampler(config), 14, vocab_size=15)
    assert max(max(ids) for _, ids in found) < 15


def test_bans_hold_for_beams() -> None:
    tokenizer, model = Tokenizer.named("bytes"), random_model(257, seed=3)
    config = SamplingConfig(
        max_new_tokens=6, beams=3, min_new_tokens=6, no_repeat_ngram_size=1, logit_bias=("#256=100",)
    )
    found = beam_search(TorchEngine(model), [1], config, Sampler(config, tokenizer), 256)
    for _, ids in found:
        assert len(ids) == 6
        assert len({1, *ids}) == 7
        assert 256 not in ids


def test_a_search_stops_once_no_text_can_become_better_than_those_that_ended() -> None:
    model, config = random_model(5, seed=0), SamplingConfig(max_new_tokens=20, beams=2, logit_bias=("#4=9",))
    engine = TorchEngine(model)
    found = beam_search(engine, [1], config, Sampler(config), 4)
    assert [ids[-1] for _, ids in found] == [4, 4]
    assert engine.length < 5


def test_beams_do_not_slide() -> None:
    model = random_model(5, seed=0, n_positions=8)
    assert len(search(model, [1, 2, 3], 4, max_new_tokens=5, beams=2)) == 2
    with pytest.raises(ConfigError) as caught:
        search(model, [1, 2, 3, 0], 4, max_new_tokens=5, beams=2)
    assert str(caught.value) == (
        "prompt (4 tokens) and max_new_tokens (5) must fit into the context (8) together, for beams"
    )


def test_bans_that_leave_nothing_are_an_error() -> None:
    with pytest.raises(ConfigError, match="no token is left to choose"):
        search(
            random_model(3, seed=0),
            [0, 1],
            2,
            max_new_tokens=3,
            beams=2,
            no_repeat_ngram_size=1,
            logit_bias=("#2=-1e39",),
        )


def test_bans_that_leave_nothing_later_still_give_what_ended_before() -> None:
    found = search(random_model(3, seed=0), [0], 2, max_new_tokens=4, beams=4, no_repeat_ngram_size=1)
    assert sorted(ids for _, ids in found) == [[1, 2], [2]]


def test_logits_that_are_no_numbers_are_an_error() -> None:
    model = random_model(5, seed=0)
    model.final_norm.weight.data[0] = math.nan
    with pytest.raises(GenerationError, match="logits must be finite"):
        search(model, [1], 4, max_new_tokens=3, beams=2)
