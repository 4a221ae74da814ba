"""Speculative decoding changes the speed but no token, with every drafter and every setting."""

from collections.abc import Sequence

import pytest
import torch
from builders import new_model
from engines import build_engine, of_kinds

from minigpt.config import SamplingConfig
from minigpt.generation.decoding import Decoder, generate
from minigpt.generation.engine import Engine
from minigpt.generation.sampling import Sampler
from minigpt.generation.speculative import ChooseDraft, Drafter, SpeedupMonitor
from minigpt.generation.streaming import generate_pieces
from minigpt.model.gpt import GPT
from minigpt.tokenizer.tokenizer import Tokenizer

every_engine = pytest.mark.parametrize("kind", of_kinds("torch", "native", "int8"))
VOCABULARY = 23


def sharp_model(n_positions: int = 24, seed: int = 0, vocab_size: int = VOCABULARY, scale: float = 8) -> GPT:
    return new_model(seed=seed, scale=scale, vocab_size=vocab_size, n_positions=n_positions, n_embd=12)


def build(kind: str, model: GPT) -> Engine:
    """Torch's in float64: its kernels round differently for one id and for several."""
    return build_engine(kind, model.double() if kind == "torch" else model)


class Oracle:
    """Drafts the true continuation, wrong from the `wrong`-th token on, and more tokens than requested."""

    def __init__(self, text: Sequence[int], wrong: int | None, count: int) -> None:
        self.text, self.wrong, self.count = list(text), wrong, count
        self.requested: list[int] = []

    def propose(self, tokens: Sequence[int], max_tokens: int, choose: ChooseDraft) -> list[int]:
        self.requested.append(max_tokens)
        draft = (self.text[len(tokens) :] + [0] * self.count)[: self.count]
        if self.wrong is not None:
            draft[self.wrong :] = [(token + 1) % VOCABULARY for token in draft[self.wrong :]]
        return draft


def continued(
    engine: Engine, prompt: list[int], config: SamplingConfig, drafter: Drafter | None = None, keep_first: int = 0
) -> tuple[list[int], int]:
    """All tokens, and the number of steps."""
    decoder = Decoder(engine, [prompt], Sampler(config), keep_first=keep_first)
    decoder.drafter = drafter
    steps = 0
    while decoder.n_new < config.max_new_tokens:
        (tokens,) = decoder.advance()
        assert [token.id for token in tokens] == decoder.tokens[0][-len(tokens) :]
        steps += 1
    assert decoder.n_new == config.max_new_tokens
    assert len(decoder.tokens[0]) == len(prompt) + config.max_new_tokens
    return decoder.tokens[0], steps


every_way = pytest.mark.parametrize(
    "settings",
    [{"temperature": 0}, {"temperature": 1.0, "repetition_penalty": 1.3, "top_k": 9}],
    ids=["greedy", "drawn"],
)


@every_engine
@every_way
@pytest.mark.parametrize("keep_first", [0, 5])
def test_draft_tokens_that_are_right_or_wrong_or_too_many_change_no_token(
    always_drafts: None, kind: str, settings: dict[str, float], keep_first: int
) -> None:
    engine = build(kind, sharp_model())
    config = SamplingConfig(max_new_tokens=50, seed=1, **settings)  # type: ignore[arg-type]
    expected, _ = continued(engine, [1, 2, 3], config, keep_first=keep_first)
    for wrong, count in [(None, 4), (None, 50), (0, 1), (0, 4), (1, 4), (3, 50)]:
        drafter = Oracle(expected, wrong, count)
        found, steps = continued(engine, [1, 2, 3], config, drafter, keep_first)
        assert found == expected
        assert max(drafter.requested) <= 22
        assert steps == 50 if wrong == 0 else steps <= 40


@every_way
def test_a_stop_string_within_accepted_draft_tokens_ends_the_row_there(
    always_drafts: None, settings: dict[str, float]
) -> None:
    tokenizer, model = Tokenizer.named("bytes"), sharp_model(120, vocab_size=257, seed=8).double()
    config = SamplingConfig(max_new_tokens=60, seed=5, **settings)  # type: ignore[arg-type]
    plain = "".join(piece.text for piece in generate_pieces(Engine(model), tokenizer, ["ab"], config))
    for stop in sorted({*plain[5:40:7]}):
        stopped = config.replace(stop=(stop,))
        expected = list(generate_pieces(Engine(model), tokenizer, ["ab"], stopped))
        (ids,) = [[256, *b"ab", *(piece.token.id for piece in expected), *[3] * 9]]
        oracle = Oracle(ids[1:], None, 7)
        assert list(generate_pieces(Engine(model), tokenizer, ["ab"], stopped, drafter=oracle)) == expected


def test_drafting_happens_only_while_there_is_one_row(always_drafts: None) -> None:
    model = sharp_model(40).double()
    config = SamplingConfig(max_new_tokens=20, temperature=1.0, seed=6)
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    expected = torch.stack(list(generate(Engine(model), ids, config)), dim=1).tolist()
    drafter = Oracle([1, 2, 3, *expected[0]], None, 4)
    decoder = Decoder(Engine(model), ids.tolist(), Sampler(config))
    decoder.drafter = drafter
    for _ in range(5):
        assert [len(tokens) for tokens in decoder.advance()] == [1, 1]
    assert drafter.requested == []
    decoder.drop({1})
    lengths = []
    while decoder.n_new < 20:
        lengths.append(len(decoder.advance()[0]))
    assert lengths == [5, 5, 5]
    assert decoder.tokens[0] == [1, 2, 3, *expected[0]]


# Whether drafting is faster


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = 1e6

    def __call__(self) -> float:
        return self.now

    def step(self, monitor: SpeedupMonitor, draft: int, tokens: int, plain: float, drafting: float) -> bool:
        """One step, which takes longer if it drafts; returns whether it did."""
        wanted = monitor.should_draft()
        self.now += drafting if wanted and draft else plain
        monitor.record(draft if wanted else 0, tokens if wanted and draft else 1)
        return wanted


def test_drafting_continues_while_it_is_faster() -> None:
    clock = Clock()
    monitor = SpeedupMonitor(clock)
    wanted = [clock.step(monitor, 7, 3, plain=0.01, drafting=0.013) for _ in range(500)]
    assert not all(wanted[:3])
    assert all(wanted[3:])


@pytest.mark.parametrize("first", [0.01, 5.0], ids=["at once", "after a long prompt"])
def test_drafting_pauses_while_it_is_slower_for_longer_each_time(first: float) -> None:
    clock = Clock()
    monitor = SpeedupMonitor(clock)
    clock.step(monitor, 7, 1, plain=first, drafting=0.013)
    wanted = [clock.step(monitor, 7, 1, plain=0.01, drafting=0.013) for _ in range(2000)]
    stretches = "".join("d" if one else "." for one in wanted).strip(".").split("d")
    pauses = [len(stretch) for stretch in stretches if stretch]
    assert pauses[:5] == [16, 32, 64, 128, 256]
    assert set(pauses[5:]) <= {256}
    tries = "".join("d" if one else "." for one in wanted).strip(".").split(".")
    assert {len(stretch) for stretch in tries if stretch} == {8}


# The caller's processors
