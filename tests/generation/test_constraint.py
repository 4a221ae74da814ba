"""Generated text is always UTF-8: with every engine, sampler and search, and without changing what needs no change."""

import gc
import math
import weakref
from typing import Any

import pytest
import torch
from builders import distribution
from engines import build_engine, of_kinds
from torch import Tensor
from writing import BYTES, REPLACEMENT, SAMPLERS, TOKENIZERS, untrained, written

from minigpt.config import GPTConfig, SamplingConfig
from minigpt.errors import ConfigError
from minigpt.generation.constraint import TextConstraint
from minigpt.generation.decoding import Decoder
from minigpt.generation.engine import Engine
from minigpt.generation.healing import Prompt
from minigpt.generation.sampling import Sampler
from minigpt.generation.streaming import generate_text
from minigpt.model.gpt import GPT


@pytest.mark.parametrize("kind", of_kinds("torch", "graph", "native", "int8"))
def test_an_untrained_model_writes_no_replacement_character(kind: str) -> None:
    for name in {"torch": list(TOKENIZERS), "graph": ["bytes"]}.get(kind, ["bpe"]):
        tokenizer = TOKENIZERS[name]
        engine = build_engine(kind, untrained(tokenizer))
        texts = [text for sampler in SAMPLERS.values() for text in written(engine, tokenizer, ["é朝"], **sampler)]
        assert sum(map(len, texts)) > 200
        assert not any(REPLACEMENT in text for text in texts)
        invalid = written(engine, tokenizer, ["é朝"], **SAMPLERS["all"], allow_invalid_utf8=True)
        assert REPLACEMENT in invalid[0]  # it would write some


def test_beams_are_utf8() -> None:
    texts = written(Engine(untrained(BYTES)), BYTES, ["é", "a "], beams=6, samples=4, max_new_tokens=50)
    assert len(set(texts)) > 2
    assert not any(REPLACEMENT in text for text in texts)


def test_generate_text_and_a_processor_of_the_caller_are_utf8() -> None:
    def prefers_invalid_bytes(logits: Tensor, _history: Tensor, _n_new: int) -> Tensor:
        ids = torch.arange(257)
        return torch.where((ids >= 128) & (ids < 256), logits + 50, logits)

    config = SamplingConfig(max_new_tokens=200, seed=1)
    text = "".join(generate_text(untrained(BYTES), BYTES, "a", config, processors=[prefers_invalid_bytes]))
    assert len(text) > 40
    assert REPLACEMENT not in text


# What is drawn


def test_the_rest_of_the_distribution_is_the_models_own() -> None:
    constraint = TextConstraint(BYTES)
    logits = torch.randn(3, 257, generator=torch.Generator().manual_seed(0))
    states = [constraint.start(prompt) for prompt in (b"a", b"\xe6\xbc", b"\xf0")]
    sampler = Sampler(SamplingConfig(temperature=1, top_p=1, seed=0), BYTES)
    found = distribution(sampler, logits, torch.empty(3, 0, dtype=torch.int64), 0, states)
    allowed = torch.zeros(3, 257, dtype=torch.bool)
    allowed[0, [*range(0x80), *range(0xC2, 0xF5), 256]] = True
    allowed[1, 0x80:0xC0] = True
    allowed[2, 0x90:0xC0] = True
    torch.testing.assert_close(found, logits.masked_fill(~allowed, -math.inf).softmax(-1))


def test_a_constraint_costs_no_memory_of_its_own_and_frees_it_at_once() -> None:
    tokenizer = TOKENIZERS["bpe"]
    logits, vocab = torch.zeros(1, tokenizer.vocab_size), tokenizer.vocab_size
    one, other = TextConstraint(tokenizer), TextConstraint(tokenizer)
    state = one.start(b"")
    assert one._mask(state, logits.device) is other._mask(state, logits.device)
    with_beginning = one.start(b"", beginning=b"a")
    assert one.apply(logits, logits, [with_beginning]).shape == (1, vocab)
    gone = weakref.ref(one)
    gc.disable()  # a server creates one for each request, and the collector seldom runs there
    try:
        del one
        assert gone() is None
    finally:
        gc.enable()


@pytest.fixture(scope="module")
def english() -> GPT:
    """A model that has learned an English text byte by byte."""
    torch.manual_seed(0)
    text = "the quick brown fox jumps over the lazy dog while the old man walks slowly along the river bank; " * 3
    ids = torch.tensor(list(text.encode()))
    model = GPT(GPTConfig(vocab_size=257, n_positions=48, n_embd=32, n_layer=1, n_head=2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(150):
        starts = torch.arange(8) * 11 + step % 90
        batch = torch.stack([ids[start : start + 49] for start in starts.tolist()])
        loss = torch.nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 1.0
    return model.eval()


@pytest.mark.parametrize("sampler", [{"temperature": 0}, {"temperature": 0.7, "top_p": 0.9, "min_p": 0.01}])
def test_a_model_that_writes_valid_text_writes_the_same_text_as_without(english: GPT, sampler: dict[str, Any]) -> None:
    engine = Engine(english)
    for seed in range(2):
        ours = written(engine, BYTES, ["the ", "qu"], seed=seed, **sampler)
        assert ours == written(engine, BYTES, ["the ", "qu"], seed=seed, allow_invalid_utf8=True, **sampler)


# Characters and ends


def logits_for(*ids: int) -> Tensor:
    """Logits that prefer these ids, the first most: (1, 257)."""
    logits = torch.zeros(1, 257)
    for rank, id in enumerate(ids):
        logits[0, id] = 10 - rank
    return logits


def chosen_after(prompt: bytes, *ids: int, **settings: Any) -> int:
    processors = settings.pop("processors", ())
    sampler = Sampler(SamplingConfig(temperature=0, **settings), BYTES, processors=processors)
    assert sampler.constraint is not None
    state = sampler.constraint.start(prompt)
    return int(sampler.choose(logits_for(*ids), torch.tensor([list(prompt)]), 1, [0], [state]))


def test_a_text_does_not_end_within_a_character() -> None:
    assert chosen_after("朝".encode()[:2], BYTES.end_of_text, 65, 0x9D) == 0x9D
    assert chosen_after("朝".encode(), BYTES.end_of_text) == BYTES.end_of_text


def test_a_ban_does_not_prevent_the_end_of_a_character() -> None:
    def bans_continuations(logits: Tensor, _history: Tensor, _n_new: int) -> Tensor:
        return logits.index_fill(1, torch.arange(0x80, 0xC0), -math.inf)

    assert chosen_after(b"\xc3", 65, 0xA9, 0xA4, processors=[bans_continuations]) == 0xA9
    banned = {"bad_words": ("é",)}  # another character can be completed
    assert chosen_after(b"\xc3", 0xA9, 0xA4, **banned) == 0xA4


def test_where_bans_leave_only_invalid_bytes_that_is_an_error() -> None:
    def bans_ascii_and_starts(logits: Tensor, _history: Tensor, _n_new: int) -> Tensor:
        return logits.index_fill(1, torch.tensor([*range(0x80), *range(0xC0, 257)]), -math.inf)

    with pytest.raises(ConfigError, match="no token is left to choose"):
        chosen_after(b"a", 0x85, processors=[bans_ascii_and_starts])


def test_after_a_prompt_that_is_not_utf8_any_bytes_may_follow() -> None:
    assert chosen_after(b"\xff", 0x80, 65) == 0x80
    assert chosen_after(b"a", 0x80, 65) == 65
    assert chosen_after(b"a", 0x80, 65, allow_invalid_utf8=True) == 0x80


def test_a_beginning_is_written_first() -> None:
    model = untrained(BYTES)
    config = SamplingConfig(max_new_tokens=6, temperature=2.0, seed=0)
    decoder = Decoder(Engine(model), [Prompt([65], "朝a"), [66]], Sampler(config, BYTES))
    for _ in range(6):
        decoder.advance()
    assert bytes(decoder.tokens[0][:5]) == "A朝a".encode()
    with pytest.raises(ConfigError, match="the end of a prompt needs a Sampler with a tokenizer"):
        Decoder(Engine(model), [Prompt([65], "a")], Sampler(config))
