"""The worker runs batches in its own thread and survives what goes wrong in them."""

import queue
from collections.abc import Iterator

import pytest
from builders import random_model

from minigpt.config import SamplingConfig
from minigpt.generation.sampling import Sampler
from minigpt.server.batching.batch import Batch
from minigpt.server.batching.requests import Event, Failed, GenerationRequest
from minigpt.server.batching.worker import Worker
from minigpt.slots.slots import Slots
from minigpt.tokenizer.tokenizer import Tokenizer

TOKENIZER = Tokenizer.named("bytes")


def new_batch() -> Batch:
    return Batch(Slots(random_model(), 2), TOKENIZER)


def new_request(prompt: bytes = b"abc", tokens: int = 4) -> GenerationRequest:
    config = SamplingConfig(max_new_tokens=tokens, temperature=0)
    return GenerationRequest(list(prompt), config, Sampler(config, TOKENIZER))


@pytest.fixture
def delivered() -> "queue.Queue[Event]":
    return queue.Queue()


@pytest.fixture
def worker(delivered: "queue.Queue[Event]") -> Iterator[Worker]:
    worker = Worker(lambda events: [delivered.put(event) for event in events] and None)
    worker.start()
    yield worker
    worker.stop()


def until_last(delivered: "queue.Queue[Event]", count: int) -> list[Event]:
    events = []
    while count:
        events.append(delivered.get(timeout=60))
        count -= events[-1].is_last
    return events


def test_two_models_are_served_by_one_thread(worker: Worker, delivered: "queue.Queue[Event]") -> None:
    requests = [new_request() for _ in range(4)]
    batches = [new_batch(), new_batch()]
    for number, request in enumerate(requests):
        worker.submit(batches[number % 2], request)
    events = until_last(delivered, 4)
    assert {event.request for event in events if event.is_last} == set(requests)


def test_a_cancelled_request_gets_no_more_events(worker: Worker, delivered: "queue.Queue[Event]") -> None:
    batch, endless = new_batch(), new_request(tokens=10_000_000)
    worker.submit(batch, endless)
    delivered.get(timeout=60)
    worker.cancel(endless)
    worker.submit(batch, request := new_request())
    while not (event := delivered.get(timeout=60)).is_last:
        pass
    assert event.request is request
    assert delivered.empty()


def test_a_request_that_is_refused_is_told_so(worker: Worker, delivered: "queue.Queue[Event]") -> None:
    worker.submit(new_batch(), new_request(b""))
    (event,) = until_last(delivered, 1)
    assert isinstance(event.content, Failed)


def test_a_bug_in_a_step_fails_its_requests_and_the_worker_goes_on(
    worker: Worker, delivered: "queue.Queue[Event]", monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken, whole = new_batch(), new_batch()
    monkeypatch.setattr(broken.engine, "read", lambda _: 1 / 0)
    worker.submit(broken, new_request())
    (event,) = until_last(delivered, 1)
    assert isinstance(event.content, Failed)
    assert "division" not in str(event.content.error)
    worker.submit(whole, request := new_request())
    assert until_last(delivered, 1)[-1].request is request
    assert "ZeroDivisionError" in capsys.readouterr().err
