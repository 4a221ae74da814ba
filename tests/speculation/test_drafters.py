"""Drafts from the text itself and from a smaller model change the speed but no token."""

from collections.abc import Sequence

import pytest
import torch
from builders import new_model
from engines import build_engine, of_kinds
from torch import Tensor

from minigpt.config import SamplingConfig
from minigpt.generation.decoding import Decoder
from minigpt.generation.engine import Engine
from minigpt.generation.sampling import Sampler
from minigpt.generation.speculative import Drafter
from minigpt.model.gpt import GPT
from minigpt.native import compiled
from minigpt.native.engine import NativeEngine
from minigpt.speculation.drafters import DraftModel, PromptLookup, default_drafter

every_engine = pytest.mark.parametrize("kind", of_kinds("torch", "native", "int8"))
VOCABULARY = 23


def sharp_model(n_positions: int = 24, seed: int = 0, vocab_size: int = VOCABULARY, scale: float = 8) -> GPT:
    return new_model(seed=seed, scale=scale, vocab_size=vocab_size, n_positions=n_positions, n_embd=12)


def build(kind: str, model: GPT) -> Engine:
    """Torch's in float64: its kernels round differently for one id and for several."""
    return build_engine(kind, model.double() if kind == "torch" else model)


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
@pytest.mark.parametrize("n_positions", [1, 24])
def test_looking_up_repeated_text_changes_no_token(
    always_drafts: None, kind: str, settings: dict[str, float], n_positions: int
) -> None:
    engine = build(kind, sharp_model(n_positions))
    config = SamplingConfig(max_new_tokens=60, seed=2, **settings)  # type: ignore[arg-type]
    prompt = [1, 2, 3, 4, 1, 2, 3]
    expected, _ = continued(engine, prompt, config)
    assert continued(engine, prompt, config, PromptLookup())[0] == expected


@every_engine
@every_way
@pytest.mark.parametrize(("draft_positions", "same"), [(24, True), (200, False), (10, False)])
def test_a_draft_model_changes_no_token(
    always_drafts: None, kind: str, settings: dict[str, float], draft_positions: int, same: bool
) -> None:
    engine = build(kind, sharp_model(seed=3))
    draft = build(kind, sharp_model(draft_positions, seed=3 if same else 4, scale=8 if same else 7.5))
    config = SamplingConfig(max_new_tokens=60, seed=3, **settings)  # type: ignore[arg-type]
    expected, _ = continued(engine, [1, 2, 3], config)
    drafter = DraftModel(draft, VOCABULARY)
    found, steps = continued(engine, [1, 2, 3], config, drafter)
    assert found == expected
    assert continued(engine, [4], config, drafter)[0] == continued(engine, [4], config)[0]  # after another text
    if same:
        assert steps <= 60 - 15  # until the window slides; then the draft model sees less


def test_two_texts_share_the_engine_of_a_draft_model(always_drafts: None) -> None:
    engine, draft = (build("torch", sharp_model(100, seed=5)) for _ in range(2))
    config, prompts = SamplingConfig(max_new_tokens=45, temperature=1.0, seed=4), [[1, 2, 3], [4, 5]]
    expected = [continued(engine, prompt, config)[0] for prompt in prompts]
    decoders = [Decoder(engine, [prompt], Sampler(config)) for prompt in prompts]
    for decoder in decoders:
        decoder.drafter = DraftModel(draft, VOCABULARY)
    for _ in range(5):
        for decoder in decoders:
            assert [len(decoder.advance()[0]) for _ in range(2)] == [1, 8]  # the text again, then a draft of 7
    assert [decoder.tokens[0] for decoder in decoders] == expected


def test_accepted_draft_tokens_save_reads_of_the_model(always_drafts: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted at the engine itself: a greedy text that repeats a phrase is read in a fraction of the steps."""
    engine, reads = build("torch", sharp_model(200, scale=3)), []
    read = Engine.read

    def counted(self: Engine, ids: Tensor) -> Tensor:
        reads.append(ids.shape[1])
        return read(self, ids)

    monkeypatch.setattr(Engine, "read", counted)
    config = SamplingConfig(max_new_tokens=100, temperature=0)
    expected, _ = continued(engine, [1, 2], config)
    assert reads == [1] * 99
    reads.clear()
    found, _ = continued(engine, [1, 2], config, PromptLookup())
    assert found == expected
    assert len(set(expected[-40:])) <= 8  # small random models soon repeat themselves
    assert len(reads) < 30
    assert max(reads) == 8


def test_lookup_finds_the_last_occurrence_of_the_longest_match() -> None:
    def unused(logits: Tensor, draft: Sequence[int]) -> int:
        raise AssertionError

    lookup = PromptLookup()
    assert lookup.propose([1, 2, 3, 9, 1, 2, 3], 7, unused) == [9, 1, 2, 3, 9, 1, 2]  # repeated
    assert lookup.propose([1, 2, 3, 9, 1, 2, 3], 2, unused) == [9, 1]
    assert lookup.propose([1, 2, 3, 9, 1, 2, 3, 8, 2, 3], 3, unused) == [8, 2, 3]  # the later of two
    assert lookup.propose([1, 2, 3, 9, 1, 2, 3, 8, 2, 3, 1, 2, 3], 3, unused) == [8, 2, 3]  # the longer match
    assert lookup.propose([5, 6, 7], 7, unused) == []
    assert lookup.propose([7, 7, 7], 7, unused) == [7] * 7
    assert lookup.propose([4], 7, unused) == []
    assert lookup.propose([1, 2, 3, 9, 1, 2, 3], 4, unused) == [9, 1, 2, 3]  # another text after those
    assert lookup.propose([*range(20), 0, 1], 99, unused) == list(range(2, 9))


@pytest.mark.parametrize("kind", ["draft", "lookup"])
def test_drawn_tokens_have_the_models_distribution_with_a_drafter_too(always_drafts: None, kind: str) -> None:
    """A chi-square test over all continuations of three tokens, from 300 seeds."""
    size, count, prompt = 3, 300, [0, 1, 2, 0, 1, 1, 0, 2, 2, 0]
    model, draft = (sharp_model(vocab_size=size, seed=seed, scale=3).double() for seed in (6, 7))
    with torch.no_grad():
        texts = torch.cartesian_prod(*3 * [torch.arange(size)])  # (27, 3)
        ids = torch.cat([torch.tensor(prompt).expand(len(texts), -1), texts], dim=1)
        chances = model(ids)[:, len(prompt) - 1 : -1].softmax(-1)  # (27, 3, V)
    expected = count * chances.gather(2, texts[..., None]).prod(dim=1).flatten()  # (27,)
    assert float(expected.sum()) == pytest.approx(count)
    assert float(expected.min()) > 2.5
    engine, observed, accepted = Engine(model), torch.zeros(27, dtype=torch.float64), 0
    drafter = DraftModel(Engine(draft), size) if kind == "draft" else PromptLookup()
    for seed in range(count):
        config = SamplingConfig(max_new_tokens=3, temperature=1.0, top_p=1.0, seed=seed)
        decoder = Decoder(engine, [prompt], Sampler(config))
        decoder.drafter = drafter
        while decoder.n_new < 3:
            accepted += len(decoder.advance()[0]) - 1
        first, second, third = decoder.tokens[0][len(prompt) :]
        observed[9 * first + 3 * second + third] += 1
    assert accepted > count / 10
    statistic = float(((observed - expected) ** 2 / expected).sum())
    assert statistic < 54.1  # the 99.9th percentile of chi-square with 26 degrees of freedom


@every_engine
@every_way
@pytest.mark.parametrize("kind_of_drafter", ["lookup", "draft"])
def test_drafting_changes_no_token_with_the_callers_processors(
    always_drafts: None, kind: str, settings: dict[str, float], kind_of_drafter: str
) -> None:
    def no_token_twice_in_three(logits: Tensor, history: Tensor, n_new: int) -> Tensor:
        assert n_new <= history.shape[1]
        return logits.scatter(1, history[:, -2:], -torch.inf)

    engine = build(kind, sharp_model(60))
    config = SamplingConfig(max_new_tokens=60, seed=1, **settings)  # type: ignore[arg-type]
    sampler = Sampler(config, processors=[no_token_twice_in_three])
    drafters = {"lookup": PromptLookup(), "draft": DraftModel(build(kind, sharp_model(60, seed=1)), VOCABULARY)}
    texts = []
    for drafter in (None, drafters[kind_of_drafter]):
        decoder = Decoder(engine, [[1, 2, 3]], sampler)
        decoder.drafter = drafter
        while decoder.n_new < 60:
            decoder.advance()
        texts.append(decoder.tokens[0])
    assert texts[0] == texts[1]
    assert all(texts[0][at] not in texts[0][at - 2 : at] for at in range(3, 63))


def test_engines_whose_logits_depend_on_the_number_of_tokens_get_no_drafter_by_default() -> None:
    assert default_drafter(Engine(new_model())) is None
    if compiled.library() is not None:
        assert isinstance(default_drafter(NativeEngine(new_model())), PromptLookup)
