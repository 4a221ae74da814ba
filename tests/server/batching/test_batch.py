"""A request in a batch gets what it gets alone, whatever runs beside it, and shares work with similar ones."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from builders import random_model

from minigpt.config import SamplingConfig
from minigpt.cuda.slots import CudaSlots
from minigpt.errors import ConfigError, GenerationError
from minigpt.generation.resolve_engine import resolve_engine
from minigpt.generation.sampling import Sampler
from minigpt.generation.streaming import Piece, generate_pieces
from minigpt.model.gpt import GPT
from minigpt.native import compiled
from minigpt.native.slots import NativeSlots
from minigpt.server.batching.batch import Batch
from minigpt.server.batching.requests import Event, Failed, GenerationRequest, ScoredPrompt
from minigpt.slots.resolve_slots import resolve_slots
from minigpt.slots.slots import Slots
from minigpt.tokenizer.tokenizer import Tokenizer

TOKENIZER = Tokenizer.named("bytes")
CONTEXT = 96
NewEngine = Callable[[GPT, int], Slots]


def small_chunks(engine: Slots) -> Slots:
    """The engine with chunks so small that short prompts have several."""
    engine.chunk_size = 8
    return engine


ENGINES: dict[str, NewEngine] = {
    "pytorch": lambda model, slots: small_chunks(Slots(model, slots)),
    "fixed shapes": lambda model, slots: small_chunks(CudaSlots(model, slots)),
}
if compiled.library() is not None:
    ENGINES["float32"] = lambda model, slots: small_chunks(NativeSlots(model, slots))
    ENGINES["int8"] = lambda model, slots: small_chunks(NativeSlots(model, slots, "int8"))
every_engine = pytest.mark.parametrize("new_engine", ENGINES.values(), ids=ENGINES)


def small_model() -> GPT:
    return random_model(n_positions=CONTEXT, n_embd=32, n_head=2, std=0.2)


def new_request(prompt: bytes, *, alternatives: int | None = 2, score: bool = False, continues: bool = True,
                **sampling: object) -> GenerationRequest:  # fmt: skip
    config = SamplingConfig(**{"max_new_tokens": 6, "seed": 1, "top_p": 1.0, "temperature": 1.0, **sampling})
    sampler = Sampler(config, TOKENIZER)
    return GenerationRequest(list(prompt), config, sampler, alternatives, score_prompt=score, continues=continues)


def new_batch(new_engine: NewEngine, *, slots: int = 4, **options: int) -> Batch:
    return Batch(new_engine(small_model(), slots), TOKENIZER, **options)


def finish(batch: Batch, most: int = 2000) -> list[Event]:
    events = []
    for _ in range(most):
        if batch.is_idle:
            return events
        events += batch.step()
    raise AssertionError("the batch does not end")


def answers(events: list[Event], request: GenerationRequest) -> dict[int, list[object]]:
    """What a request got, for each of its samples; its scored prompt under -1."""
    found: dict[int, list[object]] = {}
    for event in events:
        if event.request is request:
            row = event.content.row if isinstance(event.content, Piece) else -1
            found.setdefault(row, []).append(event.content)
    return found


def alone(new_engine: NewEngine, request: GenerationRequest) -> dict[int, list[object]]:
    batch = new_batch(new_engine)
    batch.add(request)
    return answers(finish(batch), request)


def some_requests(draw: random.Random, count: int) -> list[GenerationRequest]:
    """Requests of every kind; many of them begin alike."""
    beginnings = [bytes(draw.randrange(256) for _ in range(20)) for _ in range(3)]
    kinds: list[dict[str, object]] = [
        {"temperature": 0},
        {"seed": draw.randrange(99), "samples": 3},
        {"top_k": 5, "repetition_penalty": 1.3, "frequency_penalty": 0.5},
        {"top_p": 0.7, "min_new_tokens": 3},
        {"temperature": 0, "score": True},
        {"score": True, "continues": False},
        {"continues": False},
        {"alternatives": None, "logit_bias": ("#7=3",)},
        {"max_new_tokens": 40, "context": "slide"},
        {"max_new_tokens": 90, "context": "keep-first:4"},
        {"stop": ("a", "\n"), "max_new_tokens": 30},
    ]
    requests = []
    for number in range(count):
        ending = bytes(draw.choices(range(256), k=draw.choice((0, 3, 30, 60))))
        prompt = draw.choice(beginnings)[: draw.randrange(1, 21)] + ending
        requests.append(new_request(prompt, **kinds[number % len(kinds)]))
    return requests


# A request beside others


@pytest.fixture
def one_thread() -> Iterator[None]:
    """With several, PyTorch divides the rows of a product, and on some processors a row's sum depends on its part."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
@every_engine
@pytest.mark.parametrize("seed", range(1))
def test_a_request_gets_the_same_alone_and_beside_others(new_engine: NewEngine, seed: int) -> None:
    draw = random.Random(seed)
    requests = some_requests(draw, 20)
    batch = new_batch(new_engine, prompt_tokens=5, prefix_cache_bytes=draw.choice((0, 100_000, 10_000_000)))
    left, cancelled, events = list(requests), set[GenerationRequest](), []
    while left or not batch.is_idle:
        for _ in range(draw.randrange(3)):
            if left:
                batch.add(left.pop())
        if draw.random() < 0.03:
            cancelled.add(victim := draw.choice(requests))
            batch.cancel(victim)
            left = [request for request in left if request is not victim]
        events += batch.step()
    for request in requests:
        if request not in cancelled:
            assert answers(events, request) == alone(new_engine, request)


@pytest.mark.skipif(compiled.library() is None, reason="the C code is not compiled")
def test_the_tokens_are_those_of_generate() -> None:
    model = small_model()
    config = SamplingConfig(max_new_tokens=120, samples=3, seed=5)
    request = GenerationRequest(list(b"Once upon"), config, Sampler(config, TOKENIZER))
    batch = Batch(resolve_slots(model, 4), TOKENIZER)
    batch.add(request)
    found = answers(finish(batch), request)
    expected: dict[int, list[object]] = {}
    for piece in generate_pieces(resolve_engine(model), TOKENIZER, ["Once upon"], config):
        expected.setdefault(piece.row, []).append(piece)
    assert found == expected


@every_engine
def test_prompt_scores_are_the_log_probabilities_of_the_model(new_engine: NewEngine) -> None:
    model, prompt = small_model(), list(b"The quick brown fox jumps")
    request = new_request(bytes(prompt), score=True, continues=False, alternatives=3)
    ((scored,),) = alone(new_engine, request).values()
    assert isinstance(scored, ScoredPrompt)
    with torch.no_grad():
        expected = model(torch.tensor([prompt])).log_softmax(-1)[0]
    assert [token.id for token in scored.tokens] == prompt
    assert scored.tokens[0].logprob is None
    exact = new_engine is not ENGINES.get("int8")
    for at, token in enumerate(scored.tokens[1:]):
        tolerance = 2e-4 if exact else 0.3
        assert token.logprob == pytest.approx(float(expected[at, token.id]), abs=tolerance)
        assert token.alternatives[0][1] == pytest.approx(float(expected[at].max()), abs=tolerance)


# Work that is shared


@every_engine
def test_the_samples_of_a_request_share_the_work_on_its_prompt(new_engine: NewEngine) -> None:
    batch = new_batch(new_engine, slots=2)
    request = new_request(bytes(range(30)), samples=5)
    batch.add(request)
    assert answers(finish(batch), request).keys() == set(range(5))
    assert batch.n_prompt_tokens == 30


@every_engine
def test_a_prompt_that_begins_like_an_earlier_one_is_read_from_there_on(new_engine: NewEngine) -> None:
    batch = new_batch(new_engine, prefix_cache_bytes=10_000_000)
    for end in (b"the first", b"another"):
        batch.add(new_request(bytes(range(40)) + end))
        finish(batch)
    assert batch.n_prompt_tokens == 40 + 9 + 7
    assert batch.n_cached_tokens == 40


@every_engine
def test_two_equal_prompts_at_once_are_computed_once(new_engine: NewEngine) -> None:
    batch = new_batch(new_engine, prompt_tokens=8, prefix_cache_bytes=10_000_000)
    for _ in range(2):
        batch.add(new_request(bytes(range(41))))
    finish(batch)
    assert batch.n_prompt_tokens < 2 * 41 - 24


def test_generating_rows_go_on_while_a_long_prompt_is_read() -> None:
    batch = new_batch(ENGINES["pytorch"], prompt_tokens=8)
    batch.add(first := new_request(b"x", max_new_tokens=60))
    batch.step()
    batch.add(new_request(bytes(range(80))))
    pieces = [len(answers(batch.step(), first).get(0, [])) for _ in range(10)]
    assert pieces == [1] * 10


# The end of a request


@every_engine
def test_a_cancelled_request_costs_no_further_step(new_engine: NewEngine) -> None:
    batch = new_batch(new_engine, slots=2)
    requests = [new_request(bytes(range(50)), samples=4), new_request(b"waits")]
    for request in requests:
        batch.add(request)
    batch.step()
    for request in requests:
        batch.cancel(request)
    assert batch.is_idle
    assert batch.step() == []


def test_many_texts_of_one_request_do_not_make_a_later_request_wait() -> None:
    batch = new_batch(ENGINES["pytorch"], slots=2)
    large, later = new_request(b"a", samples=6), new_request(b"b", samples=2)
    batch.add(large)
    events = batch.step()
    batch.add(later)
    events += finish(batch)
    ends = [event.request for event in events if isinstance(event.content, Piece) and event.content.finish_reason]
    assert ends.index(later) < 4  # it gets one of the first places that become free
    assert [event.request for event in events if event.is_last] == [later, large]
    for request in (large, later):
        assert answers(events, request) == alone(ENGINES["pytorch"], request)


def test_an_error_ends_its_own_request_only() -> None:
    batch = new_batch(ENGINES["pytorch"])
    good, bad = new_request(b"a"), new_request(b"a")
    everything = tuple(f"#{id}=-1e38" for id in range(257))
    bad = replace(bad, sampler=Sampler(SamplingConfig(logit_bias=everything * 10, top_p=1, temperature=1), TOKENIZER))
    for request in (good, bad):
        batch.add(request)
    events = finish(batch)
    (failed,) = answers(events, bad)[-1]
    assert isinstance(failed, Failed)
    assert "no token is left" in str(failed.error) or "overflows" in str(failed.error)
    assert answers(events, good) == alone(ENGINES["pytorch"], good)


@pytest.mark.parametrize(
    "options", [{}, {"score": True}, {"score": True, "continues": False}, {"score": True, "samples": 3}], ids=str
)
def test_a_damaged_model_fails_its_requests_in_one_sentence(options: dict[str, object]) -> None:
    model = small_model()
    model.final_norm.weight.data.fill_(float("nan"))
    batch = Batch(Slots(model, 2), TOKENIZER)
    batch.add(request := new_request(b"a long prompt" * 6, **options))
    (failed,) = answers(finish(batch), request)[-1]
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, GenerationError)
    assert batch.n_running == 0


def test_a_model_that_is_damaged_at_one_position_fails_the_score_of_it() -> None:
    model = small_model()
    model.position_embedding.weight.data[70].fill_(float("nan"))
    batch = Batch(small_chunks(Slots(model, 2)), TOKENIZER)
    bad, good = new_request(bytes(80), score=True, continues=False), new_request(bytes(60), score=True)
    for request in (bad, good):
        batch.add(request)
    events = finish(batch)
    (failed,) = answers(events, bad)[-1]
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, GenerationError)
    assert len(answers(events, good)[0]) == 6


@every_engine
def test_a_text_that_failed_leaves_no_nan_in_its_slot_for_later_texts(new_engine: NewEngine) -> None:
    model = small_model()
    model.position_embedding.weight.data[70] = torch.nan
    batch = Batch(new_engine(model, 2), TOKENIZER)
    for _ in range(2):  # both slots
        batch.add(new_request(bytes(80)))
    finish(batch)
    batch.add(good := new_request(bytes(60), samples=2))  # the second text gets a copy of the first one's prompt
    assert answers(finish(batch), good).keys() == {0, 1}


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (new_request(b""), "is empty"),
        (new_request(bytes(97), score=True), "context length is 96"),
        (new_request(b"a", context="keep-first:49"), "half the context"),
    ],
    ids=["empty", "too long to be scored", "keep-first"],
)
def test_a_request_that_cannot_be_run_is_refused(request_: GenerationRequest, message: str) -> None:
    batch = new_batch(ENGINES["pytorch"])
    with pytest.raises(ConfigError, match=message):
        batch.add(request_)
    assert batch.is_idle
