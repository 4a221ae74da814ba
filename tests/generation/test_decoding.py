"""Generation against its plain oracle, and text streams against the text they should join to."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.config import GPTConfig, SamplingConfig
from minigpt.errors import ConfigError
from minigpt.generation.decoding import (
    StopFilter,
    generate,
    generate_pieces,
    generate_text,
    generate_uncached,
    window_start,
)
from minigpt.model.gpt import GPT
from minigpt.text.tokenizer import Tokenizer


def small_model(vocab_size: int = 257, n_positions: int = 16, seed: int = 0) -> GPT:
    """A random float64 model whose weights are large enough that context matters."""
    torch.manual_seed(seed)
    model = GPT(GPTConfig(vocab_size=vocab_size, n_positions=n_positions, n_embd=16, n_layer=2, n_head=2)).double()
    for parameter in model.parameters():
        parameter.data.mul_(8 if parameter.dim() == 2 else 1)
    return model.eval()


@settings(deadline=None, max_examples=20)
@given(prompt=st.lists(st.integers(0, 256), min_size=1, max_size=40), n_positions=st.integers(1, 16))
def test_cached_generation_equals_the_plain_loop_even_past_the_context(prompt: list[int], n_positions: int) -> None:
    model = small_model(n_positions=n_positions)
    config = SamplingConfig(max_new_tokens=24, temperature=1.0, seed=1)
    ids = torch.tensor([prompt, prompt[::-1]])
    cached = torch.stack(list(generate(model, ids, config)))
    plain = torch.stack(list(generate_uncached(model, ids, config)))
    assert torch.equal(cached, plain)


@given(length=st.integers(1, 500), n_positions=st.integers(1, 64))
def test_the_window_fits_the_context_moves_forward_and_keeps_half_of_it(length: int, n_positions: int) -> None:
    start = window_start(length, n_positions)
    assert 1 <= length - start <= n_positions
    assert start <= window_start(length + 1, n_positions)
    if length > n_positions:
        assert length - start > n_positions // 2 or n_positions == 1


def test_an_empty_prompt_of_ids_is_refused() -> None:
    with pytest.raises(ConfigError, match="prompt is empty"):
        next(generate(small_model(), torch.empty(1, 0, dtype=torch.int64), SamplingConfig()))


def test_generation_switches_dropout_off_and_puts_the_mode_back() -> None:
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=50, n_positions=8, n_embd=16, n_layer=1, n_head=2, dropout=0.5)).train()
    config = SamplingConfig(max_new_tokens=6, temperature=0)
    ids = torch.tensor([[1, 2]])
    first = [step.item() for step in generate(model, ids, config)]
    assert model.training
    assert first == [step.item() for step in generate(model, ids, config)]


def test_ids_beyond_the_tokenizers_are_never_drawn() -> None:
    tokenizer, model = Tokenizer.named("bytes"), small_model(vocab_size=300)
    model.token_embedding.weight.data[257:] *= 50  # whatever the features, padding is what it would say
    config = SamplingConfig(max_new_tokens=30, temperature=1.0, seed=0)
    assert max(piece.id or 0 for piece in generate_pieces(model, tokenizer, "a", config)) < 257


def test_every_sample_of_a_batch_has_its_own_text_and_the_seed_repeats_them_all() -> None:
    tokenizer, model = Tokenizer.named("bytes"), small_model()
    config = SamplingConfig(max_new_tokens=12, samples=3, seed=5, temperature=2.0, top_p=1.0)
    texts = [["" for _ in range(3)] for _ in range(2)]
    for run in texts:
        for piece in generate_pieces(model, tokenizer, "ab", config):
            run[piece.row] += piece.text
    assert texts[0] == texts[1]
    assert len(set(texts[0])) == 3


def test_text_pieces_join_to_the_decoded_ids() -> None:
    tokenizer, model = Tokenizer.named("bytes"), small_model(seed=3)
    config = SamplingConfig(max_new_tokens=40, temperature=3.0, top_p=1.0, seed=2)
    pieces = list(generate_pieces(model, tokenizer, "é", config))
    ids = [piece.id for piece in pieces if piece.id is not None and piece.id != tokenizer.end_of_text]
    assert "".join(piece.text for piece in pieces) == tokenizer.decode(ids)
    assert [piece.finish_reason for piece in pieces].count(None) == len(pieces) - 1


def forced(model: GPT, ids: list[int]) -> None:
    """Makes the model continue end-of-text by `ids`, whatever its weights were: position t says ids[t]."""
    for parameter in model.parameters():
        parameter.data.zero_()
    width = model.config.n_embd
    model.final_norm.weight.data.fill_(1)
    codes = torch.eye(width, dtype=torch.float64)
    model.token_embedding.weight.data[:width] = codes * 1e-3
    for position, wanted in enumerate(ids):
        model.position_embedding.weight.data[position] = codes[wanted] * 1e3


@pytest.mark.parametrize(
    ("ids", "text", "reason", "n_ids"),
    [([3, 4, 5], "\x03\x04\x05", "length", 3), ([3, 4, 15], "\x03\x04", "stop", 3), ([3, 15, 4], "\x03", "stop", 2)],
)
def test_a_row_ends_before_a_stop_string_or_at_its_length(ids: list[int], text: str, reason: str, n_ids: int) -> None:
    tokenizer, model = Tokenizer.named("bytes"), small_model()
    forced(model, ids)
    config = SamplingConfig(max_new_tokens=3, temperature=0, stop=("\x0f",))
    pieces = list(generate_pieces(model, tokenizer, "", config))
    assert "".join(piece.text for piece in pieces) == text
    assert pieces[-1].finish_reason == reason
    assert len([piece for piece in pieces if piece.id is not None]) == n_ids


def test_end_of_text_ends_a_row_and_is_no_text() -> None:
    tokenizer, model = Tokenizer.named("bytes"), small_model()
    forced(model, [3, 4, 5])
    model.token_embedding.weight.data[[5, 256]] = model.token_embedding.weight.data[[256, 5]]
    pieces = list(generate_pieces(model, tokenizer, "", SamplingConfig(max_new_tokens=9, temperature=0)))
    assert "".join(piece.text for piece in pieces) == "\x03\x04"
    assert pieces[-1].finish_reason == "end_of_text"


@settings(deadline=None)
@given(
    pieces=st.lists(st.text("ab\n", max_size=4)),
    stops=st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3),
)
def test_a_stop_string_is_found_across_any_borders(pieces: list[str], stops: list[str]) -> None:
    whole = "".join(pieces)
    cuts = [at for stop in stops if (at := whole.find(stop)) >= 0]
    shown, found, stop_filter = "", False, StopFilter(stops)
    for piece in pieces:
        text, found = stop_filter.feed(piece)
        shown += text
        if found:
            break
    else:
        shown += stop_filter.flush()
    assert found == bool(cuts)
    assert whole.startswith(shown)
    assert not any(stop in shown for stop in stops)
    if not cuts:
        assert shown == whole


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ConfigError, match="stop string is empty"):
        StopFilter(["a", ""])


def test_a_plain_string_stream_takes_one_sample_only() -> None:
    with pytest.raises(ConfigError, match=r"samples \(2\) must be 1"):
        next(generate_text(small_model(), Tokenizer.named("bytes"), "a", SamplingConfig(samples=2)))
