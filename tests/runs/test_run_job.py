"""`run_job()`: every sink gets every event, in order; what a sink adds follows, and its last words come at the end."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from minigpt.config import GPTConfig, TrainConfig
from minigpt.data.corpus import Corpus
from minigpt.errors import CheckpointError, ConfigError
from minigpt.model.gpt import GPT
from minigpt.runs import job as module
from minigpt.runs.events import Event, Started
from minigpt.runs.job import Events, Job, Share, Sink, Stage, Train, run_job
from minigpt.storage.run import Run
from minigpt.training.clock import Control
from minigpt.training.events import Finished, Notice, Step
from minigpt.training.world import World


class Listener(Sink):
    """Keeps what it receives; says something after each step, and at the end."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.closed: list[Finished | None] = []

    def receive(self, event: Event) -> Iterable[Event]:
        self.events.append(event)
        return [Notice(event.step, "a step")] if isinstance(event, Step) else []

    def close(self, finished: Finished | None) -> Iterable[str]:
        self.closed.append(finished)
        return ["goodbye"]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setenv("MINIGPT_CACHE", str(tmp_path / "cache"))
    text = tmp_path / "fox.txt"
    text.write_text("the quick brown fox jumps over the lazy dog; " * 60)
    corpus = Corpus.build([str(text)], "bytes")
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=corpus.tokenizer.vocab_size, n_positions=16, n_embd=16, n_layer=1, n_head=2))
    config = TrainConfig(steps=2, batch_size=2, sample_every=0, device="cpu", dtype="float32")
    run = Run.create(tmp_path / "fox", model, corpus.tokenizer, {"training": config.to_dict()})
    run.lock()
    return Job(model=model, corpus=corpus, config=config, run=run, resume=False)


def test_every_sink_gets_every_event_before_the_caller_and_what_another_adds(job: Job) -> None:
    first, second, yielded = Listener(), Listener(), []
    for event in run_job(job, [first, second]):
        yielded.append(event)
        assert isinstance(event, Notice) or first.events[-1] == second.events[-1] == event
    *trained, goodbye, again, finished = yielded
    trained.append(finished)
    assert first.events == second.events == trained
    assert [type(event) for event in trained[:1] + trained[-1:]] == [Started, Finished]
    assert [getattr(event, "text", "") for event in (goodbye, again)] == ["goodbye", "goodbye"]
    after = [trained[index + 1 : index + 3] for index, event in enumerate(trained) if isinstance(event, Step)]
    assert after == [[Notice(step, "a step")] * 2 for step in (1, 2)]
    assert first.closed == [trained[-1]]


def test_leaving_closes_the_sinks_and_unlocks_the_run(job: Job) -> None:
    listener = Listener()
    events = run_job(job, [listener])
    next(event for event in events if isinstance(event, Step))
    events.close()
    assert listener.closed == [None]
    job.run.lock()


def test_a_sink_that_cannot_begin_ends_the_job_before_anything_is_trained(job: Job) -> None:
    class Broken(Sink):
        def receive(self, event: Event) -> Iterable[Event]:
            raise ConfigError(f"nothing to draw {type(event).__name__} with")

    listener = Listener()
    with pytest.raises(ConfigError, match="nothing to draw Started with"):
        list(run_job(job, [Broken(), listener]))
    assert listener.events == []
    assert listener.closed == [None]
    job.run.lock()


def test_an_error_after_the_end_is_raised_after_the_last_words(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(*_: Any, **__: Any) -> Any:
        yield Finished(2, "length", 2, None, None, 0, 1.0)
        raise CheckpointError("the disk is full")

    monkeypatch.setattr(module.loop, "train", train)
    events: list[Event] = []

    def collect() -> None:
        for event in run_job(job, [Listener()]):
            events.append(event)

    with pytest.raises(CheckpointError, match="the disk is full"):
        collect()
    assert [type(event) for event in events] == [Started, Notice, Finished]


def test_the_last_words_come_also_if_the_output_of_a_sink_is_closed(job: Job) -> None:
    class Closed(Sink):
        def receive(self, event: Event) -> Iterable[Event]:
            if isinstance(event, Finished):
                raise BrokenPipeError
            return ()

    events: list[Event] = []

    def collect() -> None:
        events.extend(run_job(job, [Listener(), Closed()]))

    with pytest.raises(BrokenPipeError):
        collect()
    assert isinstance(events[-1], Finished)
    assert events[-2] == Notice(events[-1].step, "goodbye")


def test_a_stage_may_train_another_job_first(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    class Twice(Stage):
        def train(self, train: Train, job: Share, control: Control, world: World) -> Events:
            yield Notice(0, "first the stage")
            yield from train(job, control, world)

    monkeypatch.setattr(module, "stages", lambda: (Twice(), Stage()))
    events = list(run_job(job))
    assert isinstance(events[0], Notice)
    assert isinstance(events[1], Started)
    assert isinstance(events[-1], Finished)
