"""Decoding against a plain loop without a cache: on every engine, alone, in batches, beyond the context."""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from builders import new_model
from engines import build_engine, of_kinds
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.config import GPTConfig, SamplingConfig
from minigpt.errors import ConfigError, GenerationError
from minigpt.generation.decoding import Decoder, generate, visible_tokens, window_start
from minigpt.generation.engine import Engine
from minigpt.generation.logits_processors import LogitsProcessor
from minigpt.generation.sampling import Sampler
from minigpt.model.gpt import GPT

every_engine = pytest.mark.parametrize("kind", of_kinds("torch", "native"))


def small_model(**fields: int) -> GPT:
    """A random float64 model whose weights are large enough that the context matters."""
    return new_model(scale=8, **fields).double()


def build(kind: str, model: GPT) -> Engine:
    return build_engine(kind, model.float() if kind in ("native", "int8") else model)


@torch.no_grad()
def expected_tokens(
    model: GPT, prompt: Sequence[int], config: SamplingConfig, sample: int = 0, keep_first: int = 0,
    processors: Sequence[LogitsProcessor] = (),
) -> list[int]:  # fmt: skip
    """The expected tokens of one row, without engine, cache or batch, in float64."""
    tokens, sampler = list(prompt), Sampler(config, processors=processors)
    for n_new in range(config.max_new_tokens):
        seen = torch.tensor([visible_tokens(tokens, model.config.n_positions, keep_first)])
        logits = model.double()(seen)[:, -1]
        tokens.append(int(sampler.choose(logits, torch.tensor([tokens]), n_new, [sample])))
    return tokens[len(prompt) :]


def plain_tokens(
    model: GPT, ids: torch.Tensor, config: SamplingConfig, processors: Sequence[LogitsProcessor] = ()
) -> torch.Tensor:
    """The expected tokens of rows (B, T): (n, B)."""
    rows = [expected_tokens(model, row, config, sample, 0, processors) for sample, row in enumerate(ids.tolist())]
    return torch.tensor(rows).t()


def advance(decoder: Decoder, steps: int) -> list[list[int]]:
    """The new tokens of every row after this many steps."""
    lengths = [len(tokens) for tokens in decoder.tokens]
    for _ in range(steps):
        decoder.advance()
    return [tokens[length:] for tokens, length in zip(decoder.tokens, lengths, strict=True)]


# One prompt


@settings(deadline=None, max_examples=20)
@given(prompt=st.lists(st.integers(0, 256), min_size=1, max_size=40), n_positions=st.integers(1, 16))
def test_cached_generation_equals_the_plain_loop_even_beyond_the_context(prompt: list[int], n_positions: int) -> None:
    model = small_model(n_positions=n_positions)
    config = SamplingConfig(max_new_tokens=24, temperature=1.0, seed=1)
    ids = torch.tensor([prompt, prompt[::-1]])
    cached = torch.stack(list(generate(model, ids, config)))
    plain = plain_tokens(model, ids, config)
    assert torch.equal(cached, plain)


@given(length=st.integers(1, 500), n_positions=st.integers(1, 64))
def test_the_window_fits_the_context_moves_forward_and_keeps_half_of_it(length: int, n_positions: int) -> None:
    start = window_start(length, n_positions)
    assert 1 <= length - start <= n_positions
    assert start <= window_start(length + 1, n_positions)
    if length > n_positions:
        assert length - start > n_positions // 2 or n_positions == 1
    assert start % max(1, n_positions // 2) == 0  # so that it is recomputed rarely


@given(length=st.integers(1, 200), n_positions=st.integers(2, 40), data=st.data())
def test_the_first_tokens_to_keep_and_the_end_stay_visible(length: int, n_positions: int, data: st.DataObject) -> None:
    keep_first = data.draw(st.integers(0, n_positions // 2))
    tokens = list(range(length))
    seen = visible_tokens(tokens, n_positions, keep_first)
    assert len(seen) <= n_positions
    assert seen[:keep_first] == tokens[:keep_first]
    assert seen[-1] == tokens[-1]
    rest = seen[keep_first:]
    assert rest == tokens[length - len(rest) :]
    if length <= n_positions:
        assert seen == tokens


@every_engine
@pytest.mark.parametrize("keep_first", [0, 1, 3, 4])
def test_the_first_tokens_to_keep_are_always_visible_to_the_model(kind: str, keep_first: int) -> None:
    model, prompts = small_model(vocab_size=37, n_positions=8), [list(range(11)), [5, 6]]
    config = SamplingConfig(max_new_tokens=25, temperature=1.0, seed=2)
    expected = [expected_tokens(model, prompt, config, row, keep_first) for row, prompt in enumerate(prompts)]
    decoder = Decoder(build(kind, model), prompts, Sampler(config), keep_first=keep_first)
    assert advance(decoder, 25) == expected


def test_too_many_first_tokens_to_keep_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        Decoder(Engine(small_model(n_positions=9)), [[1]], Sampler(SamplingConfig()), keep_first=5)
    assert str(caught.value) == (
        "keep-first (5) must be at most half the context length (4), to leave room for new tokens"
    )


# Several prompts


@every_engine
@settings(deadline=None, max_examples=12, derandomize=True)
@given(lengths=st.lists(st.integers(1, 20), min_size=1, max_size=4), n_positions=st.integers(1, 12))
def test_every_row_gets_the_tokens_that_it_gets_alone_although_windows_slide_at_different_times(
    kind: str, lengths: list[int], n_positions: int
) -> None:
    model = small_model(vocab_size=50, n_positions=n_positions)
    prompts = [[(7 * row + 3 * at) % 50 for at in range(length)] for row, length in enumerate(lengths)]
    samples = [row % 2 for row in range(len(prompts))]
    config = SamplingConfig(max_new_tokens=16, temperature=1.0, seed=4)
    expected = [expected_tokens(model, *row) for row in zip(prompts, [config] * 9, samples, strict=False)]
    decoder = Decoder(build(kind, model), prompts, Sampler(config), samples=samples)
    assert advance(decoder, 16) == expected


@every_engine
@pytest.mark.parametrize("dropped", [{0}, {1}, {2}, {0, 1}, {1, 2}, {0, 2}], ids=str)
def test_rows_continue_unchanged_after_others_are_dropped(kind: str, dropped: set[int]) -> None:
    model, prompts = small_model(vocab_size=50, n_positions=12), [[1] * 10, [2, 3], [4, 5, 6, 7]]
    config = SamplingConfig(max_new_tokens=20, temperature=1.0, seed=5)
    expected = [expected_tokens(model, prompt, config, row) for row, prompt in enumerate(prompts)]
    for after in (1, 4, 9):
        decoder = Decoder(build(kind, model), prompts, Sampler(config))
        advance(decoder, after)
        decoder.drop(dropped)
        assert decoder.rows == [row for row in range(3) if row not in dropped]
        advance(decoder, 20 - after)
        for row, prompt in enumerate(prompts):
            assert decoder.tokens[row] == prompt + expected[row][: after if row in dropped else 20]


def test_rows_that_stay_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, config = Engine(small_model()), SamplingConfig(max_new_tokens=9, seed=0)
    decoder = Decoder(engine, [[1, 2, 3], [4], list(range(20))], Sampler(config))
    decoder.advance()
    monkeypatch.setattr(engine, "start", None)
    decoder.drop({1})
    decoder.advance()
    decoder.drop({0, 2})
    assert decoder.rows == []


@every_engine
def test_a_prompt_of_several_rows_is_read_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = build(kind, small_model())
    read: list[int] = []
    start = type(engine).start

    def counted(self: Engine, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
        read.append(len(prompts))
        return start(self, prompts)

    monkeypatch.setattr(type(engine), "start", counted)
    prompts, config = [[1, 2], [3], [1, 2], [1, 2]], SamplingConfig(max_new_tokens=8, temperature=1.0, seed=6)
    decoder = Decoder(engine, prompts, Sampler(config), samples=[0, 0, 1, 0])
    rows = advance(decoder, 8)
    assert read == [2]
    model = engine.model
    for row, sample in enumerate([0, 0, 1, 0]):
        assert rows[row] == expected_tokens(model, prompts[row], config, sample)


# Several decoders on one engine


every_cache = pytest.mark.parametrize("kind", of_kinds("torch", "graph", "native", "int8"))
SHARED = SamplingConfig(max_new_tokens=20, temperature=1.0, seed=7)


def decoders_of(sizes: Sequence[int], engine: Engine) -> list[Decoder]:
    """A decoder for each of these numbers of rows, all with different prompts."""
    prompts = [[[number, row, 7, 8][: 2 + row] for row in range(size)] for number, size in enumerate(sizes)]
    return [Decoder(engine, each, Sampler(SHARED)) for each in prompts]


@every_cache
@pytest.mark.parametrize("sizes", [[1, 1], [2, 1], [1, 2, 3]], ids=str)
def test_decoders_in_turns_generate_the_tokens_that_each_generates_alone(kind: str, sizes: list[int]) -> None:
    engine = build(kind, small_model(vocab_size=50, n_positions=12))
    expected = [advance(decoder, 20) for decoder in decoders_of(sizes, engine)]
    decoders = decoders_of(sizes, engine)
    found: list[list[list[int]]] = [[[] for _ in range(size)] for size in sizes]
    for steps in (1, 1, 2, 1, 5, 1, 9):
        for rows, decoder in zip(found, decoders, strict=True):
            for row, new in zip(rows, advance(decoder, steps), strict=True):
                row.extend(new)
    assert found == expected


@every_cache
@pytest.mark.parametrize("sizes", [[1, 1], [1, 2, 3]], ids=str)
def test_decoders_in_several_threads_generate_the_tokens_that_each_generates_alone(kind: str, sizes: list[int]) -> None:
    engine = build(kind, small_model(vocab_size=50, n_positions=12))
    expected = [advance(decoder, 20) for decoder in decoders_of(sizes, engine)]
    for _ in range(3):
        with ThreadPoolExecutor(len(sizes)) as threads:
            assert list(threads.map(lambda decoder: advance(decoder, 20), decoders_of(sizes, engine))) == expected


# Options and errors


@pytest.mark.parametrize("ids", [[1, 2], [[1, 2]], torch.tensor([1, 2]), "ab"])
def test_ids_of_another_form_are_refused(ids: Any) -> None:
    with pytest.raises(ConfigError, match=r"ids \(.*\) must be a tensor \(B, T\); give torch\.tensor\(\[ids\]\)"):
        next(generate(small_model(), ids, SamplingConfig()))


@every_engine
def test_generation_disables_dropout_and_restores_the_mode(kind: str) -> None:
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=50, n_positions=40, n_embd=16, n_layer=1, n_head=2, dropout=0.5)).train()
    config = SamplingConfig(max_new_tokens=6, temperature=0)
    engine, ids = build(kind, model), torch.arange(30)[None]
    first = [step.item() for step in generate(engine, ids, config)]
    assert model.training
    assert first == [step.item() for step in generate(engine, ids, config)]


@every_engine
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_ids_beyond_the_tokenizers_vocabulary_are_never_drawn(kind: str, temperature: float) -> None:
    model = small_model(vocab_size=300)
    model.token_embedding.weight.data[257:] *= 50  # padding ids would be the most likely everywhere
    config = SamplingConfig(max_new_tokens=30, temperature=temperature, seed=0)
    ids = torch.stack(list(generate(build(kind, model), torch.tensor([[7], [8]]), config, vocab_size=257)))
    assert int(ids.max()) < 257
    free = torch.stack(list(generate(build(kind, model), torch.tensor([[7], [8]]), config)))
    assert int(free.max()) >= 257  # so it was the limit that excluded them


@every_engine
@pytest.mark.parametrize("count", [0, 1, 5, 99])
def test_log_probabilities_are_the_models_before_temperature_and_penalties(kind: str, count: int) -> None:
    model, prompts = small_model(vocab_size=40), [[1, 2, 3], [4]]
    config = SamplingConfig(max_new_tokens=5, temperature=0.3, repetition_penalty=2.0, seed=0, top_k=3)
    decoder = Decoder(build(kind, model), prompts, Sampler(config), vocab_size=37, alternatives=count)
    for _ in range(5):
        before = [list(tokens) for tokens in decoder.tokens]
        for tokens, (token,) in zip(before, decoder.advance(), strict=True):
            with torch.no_grad():
                logprobs = model.double()(torch.tensor([tokens]))[0, -1, :37].log_softmax(-1)
            if kind == "native":
                model.float()
            assert token.logprob == pytest.approx(float(logprobs[token.id]), abs=1e-4)
            top = logprobs.topk(min(count, 37))
            assert token.entropy == pytest.approx(float(-(logprobs.exp() * logprobs).sum()), abs=1e-4)
            # float32 may exchange tokens that are nearly as likely as one another
            above, not_below = (int((logprobs > logprobs[token.id] + margin).sum()) for margin in (1e-4, -1e-4))
            assert above <= token.rank < not_below
            ids = [id for id, _ in token.alternatives]
            assert len(set(ids)) == len(ids)
            assert logprobs[ids].tolist() == pytest.approx(top.values.tolist(), abs=1e-4)
            assert [logprob for _, logprob in token.alternatives] == pytest.approx(top.values.tolist(), abs=1e-4)


@pytest.mark.parametrize("temperature", [0, 1.0])
@pytest.mark.parametrize("kind", of_kinds("torch", "native", "int8"))
@pytest.mark.parametrize("name", ["blocks.1.mlp.down_proj.weight", "blocks.0.attention_norm.bias"])
def test_nan_weights_are_named(kind: str, name: str, temperature: float) -> None:
    model = small_model().float()
    model.get_parameter(name).data.view(-1)[3] = math.nan
    decoder = Decoder(build_engine(kind, model), [[1, 2]], Sampler(SamplingConfig(temperature=temperature)))
    with pytest.raises(GenerationError) as caught:
        decoder.advance()
    message = str(caught.value)
    assert "logits must be finite" in message
    assert message.endswith(
        f"the parameter {name} (1 of its {model.get_parameter(name).numel()} values are not finite)"
    )
    assert "\n" not in message


# The caller's processors


def no_token_twice_in_a_row(logits: torch.Tensor, history: torch.Tensor, _n_new: int) -> torch.Tensor:
    return logits.scatter(1, history[:, -1:], -math.inf)


def prefer_small_ids(logits: torch.Tensor, _history: torch.Tensor, n_new: int) -> torch.Tensor:
    return logits - n_new * torch.arange(logits.shape[1], device=logits.device) / 50


@every_engine
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_processors_change_the_tokens_of_every_engine_equally(kind: str, temperature: float) -> None:
    model, processors = small_model(vocab_size=37), [no_token_twice_in_a_row, prefer_small_ids]
    config = SamplingConfig(max_new_tokens=24, temperature=temperature, seed=1)
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    expected = plain_tokens(model, ids, config, processors)
    found = torch.stack(list(generate(build(kind, model), ids, config, processors=processors)))
    assert torch.equal(found, expected)
    assert not (found[1:] == found[:-1]).any()
    without = torch.stack(list(generate(build(kind, model), ids, config)))
    assert not torch.equal(found, without)


def test_log_probabilities_are_the_models_before_processors_that_work_in_place() -> None:
    def ban_small_ids(logits: torch.Tensor, _history: torch.Tensor, _n_new: int) -> torch.Tensor:
        logits[:, :30] = -math.inf
        return logits

    model, config = small_model(vocab_size=37).float(), SamplingConfig(temperature=0, seed=0)
    decoder = Decoder(Engine(model), [[1]], Sampler(config, processors=[ban_small_ids]), alternatives=1)
    ((token,),) = decoder.advance()
    with torch.no_grad():
        logprobs = model(torch.tensor([[1]]))[0, -1].log_softmax(-1)
    assert token.id >= 30
    assert token.logprob == pytest.approx(float(logprobs[token.id]), abs=1e-4)
    assert token.alternatives[0][0] == int(logprobs.argmax())
