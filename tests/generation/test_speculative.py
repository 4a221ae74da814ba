"""Guesses change how fast tokens come, never which: however they are guessed, and whatever draws them."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from minigpt.config import GPTConfig, SamplingConfig
from minigpt.generation import decoding
from minigpt.generation.decoding import Decoder, generate_uncached
from minigpt.generation.engines import native
from minigpt.generation.engines.engine import Engine
from minigpt.generation.engines.native import NativeEngine
from minigpt.generation.engines.pytorch import TorchEngine
from minigpt.generation.sampling import Sampler
from minigpt.generation.speculative import Drafter, DraftModel, Gain, PromptLookup
from minigpt.generation.streaming import generate_pieces
from minigpt.model.gpt import GPT
from minigpt.tokenizer.tokenizer import Tokenizer

needs_native = pytest.mark.skipif(native.library() is None, reason="decode.c is not compiled")
every_engine = pytest.mark.parametrize(
    "kind", ["torch", pytest.param("native", marks=needs_native), pytest.param("int8", marks=needs_native)]
)
VOCABULARY = 23


def random_model(n_positions: int = 24, seed: int = 0, vocab_size: int = VOCABULARY, scale: float = 8) -> GPT:
    torch.manual_seed(seed)
    model = GPT(GPTConfig(vocab_size=vocab_size, n_positions=n_positions, n_embd=12, n_layer=2, n_head=2))
    for parameter in model.parameters():
        parameter.data.mul_(scale if parameter.dim() == 2 else 1)
    return model.eval()


def build(kind: str, model: GPT) -> Engine:
    """Torch's in float64: its kernels round differently for one id and for several."""
    return TorchEngine(model.double()) if kind == "torch" else NativeEngine(model, "int8" if kind == "int8" else "none")


class AlwaysGuesses(Gain):
    """As if guessing always paid."""

    def wants_guesses(self) -> bool:
        return True

    def note(self, guesses: int, gained: int) -> None:
        pass


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "Gain", AlwaysGuesses)


class Oracle:
    """Guesses what really comes, wrong from the `wrong`-th guess on; it has no manners about how many."""

    def __init__(self, text: Sequence[int], wrong: int | None, count: int) -> None:
        self.text, self.wrong, self.count = list(text), wrong, count
        self.asked: list[int] = []

    def propose(self, tokens: Sequence[int], most: int, choose: Callable[[Tensor, int], int]) -> list[int]:
        self.asked.append(most)
        guesses = (self.text[len(tokens) :] + [0] * self.count)[: self.count]
        if self.wrong is not None:
            guesses[self.wrong :] = [(guess + 1) % VOCABULARY for guess in guesses[self.wrong :]]
        return guesses


def continued(
    engine: Engine, prompt: list[int], config: SamplingConfig, drafter: Drafter | None = None, keep_first: int = 0
) -> tuple[list[int], int]:
    """The whole text, and how often the engine was asked to read."""
    decoder = Decoder(engine, [prompt], Sampler(config), drafter=drafter, keep_first=keep_first)
    steps = 0
    while decoder.n_new < config.max_new_tokens:
        (choices,) = decoder.advance()
        assert [choice.id for choice in choices] == decoder.tokens[0][-len(choices) :]
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
def test_guesses_right_or_wrong_or_beyond_the_room_change_no_token(
    always: None, kind: str, settings: dict[str, float], keep_first: int
) -> None:
    engine = build(kind, random_model())
    config = SamplingConfig(max_new_tokens=50, seed=1, **settings)  # type: ignore[arg-type]
    expected, _ = continued(engine, [1, 2, 3], config, keep_first=keep_first)
    for wrong, count in [(None, 4), (None, 50), (0, 1), (0, 4), (1, 4), (3, 50)]:
        drafter = Oracle(expected, wrong, count)
        found, steps = continued(engine, [1, 2, 3], config, drafter, keep_first)
        assert found == expected
        assert max(drafter.asked) <= 22
        assert steps == 50 if wrong == 0 else steps <= 40


@every_engine
@every_way
@pytest.mark.parametrize("n_positions", [1, 3, 24, 100])
def test_looking_up_repeated_text_changes_no_token(
    always: None, kind: str, settings: dict[str, float], n_positions: int
) -> None:
    engine = build(kind, random_model(n_positions))
    config = SamplingConfig(max_new_tokens=60, seed=2, **settings)  # type: ignore[arg-type]
    prompt = [1, 2, 3, 4, 1, 2, 3]
    expected, _ = continued(engine, prompt, config)
    assert continued(engine, prompt, config, PromptLookup())[0] == expected


@every_engine
@every_way
@pytest.mark.parametrize(("draft_positions", "same"), [(24, False), (24, True), (200, False), (10, False)])
def test_a_draft_model_changes_no_token(
    always: None, kind: str, settings: dict[str, float], draft_positions: int, same: bool
) -> None:
    engine = build(kind, random_model(seed=3))
    draft = build(kind, random_model(draft_positions, seed=3 if same else 4, scale=8 if same else 7.5))
    config = SamplingConfig(max_new_tokens=60, seed=3, **settings)  # type: ignore[arg-type]
    expected, _ = continued(engine, [1, 2, 3], config)
    drafter = DraftModel(draft, VOCABULARY)
    found, steps = continued(engine, [1, 2, 3], config, drafter)
    assert found == expected
    assert continued(engine, [4], config, drafter)[0] == continued(engine, [4], config)[0]  # after another text
    if same:
        assert steps <= 60 - 15  # as long as the window stands, which for the draft model is all it sees


@every_way
def test_a_draft_model_that_is_the_model_itself_is_always_right(always: None, settings: dict[str, float]) -> None:
    engine, draft = (build("torch", random_model(100, seed=5)) for _ in range(2))
    config = SamplingConfig(max_new_tokens=64, seed=4, temperature=settings["temperature"])  # type: ignore[arg-type]
    _, steps = continued(engine, [1, 2, 3], config, DraftModel(draft, VOCABULARY))
    assert steps == 1 + -(-63 // 8)  # the prompt, then seven guesses and one token more each time


def test_a_draft_model_guesses_only_what_the_tokenizer_knows(always: None) -> None:
    draft = random_model(seed=1, vocab_size=30)
    draft.token_embedding.weight.data[VOCABULARY:] *= 50
    drafter = DraftModel(build("torch", draft), VOCABULARY)
    guesses = drafter.propose([1, 2, 3], 7, lambda logits, ahead: int(logits.argmax()))
    assert len(guesses) == 7
    assert max(guesses) < VOCABULARY


def test_fewer_reads_of_the_model_where_guesses_are_right(always: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted at the engine itself: a greedy text that repeats a phrase is read in a fraction of the steps."""
    engine, reads = build("torch", random_model(200, scale=3)), []
    read = TorchEngine.read

    def counted(self: TorchEngine, ids: Tensor) -> Tensor:
        reads.append(ids.shape[1])
        return read(self, ids)

    monkeypatch.setattr(TorchEngine, "read", counted)
    config = SamplingConfig(max_new_tokens=100, temperature=0)
    expected, _ = continued(engine, [1, 2], config)
    assert reads == [1] * 99
    reads.clear()
    found, _ = continued(engine, [1, 2], config, PromptLookup())
    assert found == expected
    assert len(set(expected[-40:])) <= 8  # small random models soon go round in circles
    assert len(reads) < 30
    assert max(reads) == 8


def test_lookup_finds_the_last_place_of_the_longest_run() -> None:
    def nothing(logits: Tensor, ahead: int) -> int:
        raise AssertionError

    lookup = PromptLookup()
    assert lookup.propose([1, 2, 3, 9, 1, 2, 3], 7, nothing) == [9, 1, 2, 3, 9, 1, 2]  # and round again
    assert lookup.propose([1, 2, 3, 9, 1, 2, 3], 2, nothing) == [9, 1]
    assert lookup.propose([1, 2, 3, 9, 1, 2, 3, 8, 2, 3], 3, nothing) == [8, 2, 3]  # the later of two
    assert lookup.propose([1, 2, 3, 9, 1, 2, 3, 8, 2, 3, 1, 2, 3], 3, nothing) == [8, 2, 3]  # the longer run
    assert lookup.propose([5, 6, 7], 7, nothing) == []
    assert lookup.propose([7, 7, 7], 7, nothing) == [7] * 7
    assert lookup.propose([4], 7, nothing) == []
    assert lookup.propose([1, 2, 3, 9, 1, 2, 3], 4, nothing) == [9, 1, 2, 3]  # another text after those
    assert lookup.propose([*range(20), 0, 1], 99, nothing) == list(range(2, 9))


@pytest.mark.parametrize("guesser", ["draft", "lookup"])
def test_drawn_tokens_with_guesses_are_distributed_as_the_model_says(always: None, guesser: str) -> None:
    """A chi-square test over all texts of three tokens behind one prompt, from 600 seeds."""
    size, count, prompt = 3, 600, [0, 1, 2, 0, 1, 1, 0, 2, 2, 0]
    model, draft = (random_model(vocab_size=size, seed=seed, scale=3).double() for seed in (6, 7))
    with torch.no_grad():
        texts = torch.cartesian_prod(*3 * [torch.arange(size)])  # (27, 3)
        ids = torch.cat([torch.tensor(prompt).expand(len(texts), -1), texts], dim=1)
        chances = model(ids)[:, len(prompt) - 1 : -1].softmax(-1)  # (27, 3, V)
    expected = count * chances.gather(2, texts[..., None]).prod(dim=1).flatten()  # (27,)
    assert float(expected.sum()) == pytest.approx(count)
    assert float(expected.min()) > 5
    engine, observed, accepted = TorchEngine(model), torch.zeros(27, dtype=torch.float64), 0
    drafter = DraftModel(TorchEngine(draft), size) if guesser == "draft" else PromptLookup()
    for seed in range(count):
        config = SamplingConfig(max_new_tokens=3, temperature=1.0, top_p=1.0, seed=seed)
        decoder = Decoder(engine, [prompt], Sampler(config), drafter=drafter)
        while decoder.n_new < 3:
            accepted += len(decoder.advance()[0]) - 1
        first, second, third = decoder.tokens[0][len(prompt) :]
        observed[9 * first + 3 * second + third] += 1
    assert accepted > count / 10
    statistic = float(((observed - expected) ** 2 / expected).sum())
    assert statistic < 54.1  # the 99.9th percentile of chi-square with 26 degrees of freedom


@every_way
def test_a_stop_inside_accepted_guesses_ends_the_row_there(always: None, settings: dict[str, float]) -> None:
    tokenizer, model = Tokenizer.named("bytes"), random_model(120, vocab_size=257, seed=8).double()
    config = SamplingConfig(max_new_tokens=60, seed=5, **settings)  # type: ignore[arg-type]
    plain = "".join(piece.text for piece in generate_pieces(TorchEngine(model), tokenizer, ["ab"], config))
    for stop in sorted({*plain[5:40:7]}):
        stopped = config.replace(stop=(stop,))
        expected = list(generate_pieces(TorchEngine(model), tokenizer, ["ab"], stopped))
        (ids,) = [[256, *b"ab", *(piece.choice.id for piece in expected if piece.choice is not None), *[3] * 9]]
        oracle = Oracle(ids[1:], None, 7)
        assert list(generate_pieces(TorchEngine(model), tokenizer, ["ab"], stopped, drafter=oracle)) == expected


def test_guesses_are_made_for_one_row_alone(always: None) -> None:
    model = random_model(40).double()
    config = SamplingConfig(max_new_tokens=20, temperature=1.0, seed=6)
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    expected = torch.stack(list(generate_uncached(model, ids, config)), dim=1).tolist()
    drafter = Oracle([1, 2, 3, *expected[0]], None, 4)
    decoder = Decoder(TorchEngine(model), ids.tolist(), Sampler(config), drafter=drafter)
    for _ in range(5):
        assert [len(choices) for choices in decoder.advance()] == [1, 1]
    assert drafter.asked == []
    decoder.drop({1})
    lengths = []
    while decoder.n_new < 20:
        lengths.append(len(decoder.advance()[0]))
    assert lengths == [5, 5, 5]
    assert decoder.tokens[0] == [1, 2, 3, *expected[0]]


# Whether it pays


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1e6

    def __call__(self) -> float:
        return self.now

    def step(self, gain: Gain, guesses: int, gained: int, plain: float, guessing: float) -> bool:
        """One step, which costs more where it guesses; whether it did."""
        wanted = gain.wants_guesses()
        self.now += guessing if wanted and guesses else plain
        gain.note(guesses if wanted else 0, gained if wanted and guesses else 1)
        return wanted


def test_guessing_goes_on_where_it_pays() -> None:
    clock = Clock()
    gain = Gain(clock)
    wanted = [clock.step(gain, 7, 3, plain=0.01, guessing=0.013) for _ in range(500)]
    assert not all(wanted[:3])
    assert all(wanted[3:])


@pytest.mark.parametrize("first", [0.01, 5.0], ids=["at once", "after a long prompt"])
def test_guessing_pauses_where_it_does_not_pay_longer_each_time(first: float) -> None:
    clock = Clock()
    gain = Gain(clock)
    clock.step(gain, 7, 1, plain=first, guessing=0.013)
    wanted = [clock.step(gain, 7, 1, plain=0.01, guessing=0.013) for _ in range(2000)]
    stretches = "".join("g" if one else "." for one in wanted).strip(".").split("g")
    pauses = [len(stretch) for stretch in stretches if stretch]
    assert pauses[:5] == [16, 32, 64, 128, 256]
    assert set(pauses[5:]) <= {256}
    tries = "".join("g" if one else "." for one in wanted).strip(".").split(".")
    assert {len(stretch) for stretch in tries if stretch} == {8}


def test_guessing_comes_back_when_it_pays_again_and_pauses_are_short_again() -> None:
    clock = Clock()
    gain = Gain(clock)
    for _ in range(300):
        clock.step(gain, 7, 1, plain=0.01, guessing=0.013)
    paid = [clock.step(gain, 7, 6, plain=0.01, guessing=0.013) for _ in range(400)]
    assert all(paid[-100:])
    wanted = [clock.step(gain, 7, 1, plain=0.01, guessing=0.013) for _ in range(60)]
    pause = "".join("g" if one else "." for one in wanted).strip("g").split("g")[0]
    assert len(pause) == 16


def test_steps_of_several_rows_and_windows_that_are_read_anew_are_not_compared_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noted: list[int] = []

    class Watched(AlwaysGuesses):
        def note(self, guesses: int, gained: int) -> None:
            noted.append(guesses)

    monkeypatch.setattr(decoding, "Gain", Watched)
    model = random_model(8).double()
    decoder = Decoder(TorchEngine(model), [[1, 2], [3]], Sampler(SamplingConfig(seed=0)), drafter=Oracle([], None, 0))
    for _ in range(3):
        decoder.advance()
    assert noted == []
    decoder.drop({1})
    for _ in range(10):
        decoder.advance()
    # Row 0 has 5 tokens: 3 more fill its context of 8, which then slides by 4 each time.
    assert len(noted) == 10 - 2
