"""Whether a run that is killed at any instant and resumed ends exactly like an uninterrupted one.

The processes that train are forked from one that has only imported torch, which is this file run as a script. A file of
tests imports the fixture `forker`.
"""

import builtins
import contextlib
import io
import itertools
import json
import os
import random
import select
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fork_server import ForkServer, serve

from minigpt.config import GPTConfig, TrainConfig
from minigpt.data.corpus import Corpus
from minigpt.edges import provided
from minigpt.model.gpt import GPT
from minigpt.runs.job import Job, run_job
from minigpt.storage.adapters import load_trained_state
from minigpt.storage.checkpoint import load_checkpoint
from minigpt.storage.run import Run
from minigpt.storage.tensors import load_tensors
from minigpt.training.loop import train

SETTINGS = {
    "steps": 24, "batch_size": 6, "micro_batch_size": 4, "learning_rate": 1e-2, "warmup_steps": 2, "eval_every": 4,
    "eval_tokens": 100, "sample_every": 12, "save_every": 2, "device": "cpu",
}  # fmt: skip
SHORT = {"steps": 2, "eval_every": 1, "sample_every": 0, "save_every": 1}
CLOCK = {
    "seconds", "tokens_per_second", "start_seconds", "duration", "closing_seconds",
}  # fmt: skip

# In the process that is killed.


def train_as_a_user_does(folder: Path, settings: dict[str, Any]) -> None:
    """Does what `minigpt train --resume` does: continues the run in this folder, or starts it."""
    text = folder.parent / "fox.txt"
    corpus = Corpus.build([text], "bpe:270", cache=text.parent / "cache")
    resume = (folder / "training.json").exists()
    if settings.get("distill") == "on":
        train_distilled(folder, corpus, settings)
        return
    if settings.get("lora"):
        run, model = start_or_open_adapter(folder, corpus, settings)
    elif resume:
        run, model = Run.open(folder), load_checkpoint(folder, "cpu").model
    else:
        torch.manual_seed(0)
        model = GPT(
            GPTConfig(
                vocab_size=corpus.tokenizer.vocab_size, n_positions=16, n_embd=16, n_layer=1, n_head=2, dropout=0.1
            )
        )
        run = Run.create(folder, model, corpus.tokenizer, {})
    for _ in train(model, corpus, TrainConfig(**settings), run, resume=resume):
        pass


def train_distilled(folder: Path, corpus: Corpus, settings: dict[str, Any]) -> None:
    """Does the same for a run with a teacher."""
    config = TrainConfig(**settings)
    resume = (folder / "training.json").exists()
    if resume:
        run, model = Run.open(folder), load_checkpoint(folder, "cpu").model
    else:
        torch.manual_seed(0)
        shape = GPTConfig(vocab_size=corpus.tokenizer.vocab_size, n_positions=16, n_embd=16, n_layer=1, n_head=2)
        model = GPT(shape.replace(dropout=0.1))
        run = Run.create(folder, model, corpus.tokenizer, {"training": settings})
    run.lock()
    for _ in run_job(Job(model=model, corpus=corpus, config=config, run=run, resume=resume)):
        pass


def start_or_open_adapter(folder: Path, corpus: Corpus, settings: dict[str, Any]) -> tuple[Run, GPT]:
    """The run of an adapter of a model that is the same each time, and that model with the adapter."""
    torch.manual_seed(0)
    shape = GPTConfig(vocab_size=corpus.tokenizer.vocab_size, n_positions=16, n_embd=16, n_layer=2, n_head=2)
    model = GPT(shape.replace(dropout=0.1))
    for prepare in provided("prepare_model"):
        prepare(model, TrainConfig(**settings))
    if (folder / "training.json").exists():
        run = Run.open(folder)
        load_trained_state(model, run.load_best(model))
        return run, model
    return Run.create(folder, model, corpus.tokenizer, {"adapter_base": {"name": "base", "sha256": "0" * 64}}), model


class Killer:
    """Kills this process in the n-th of the calls that write to disk; a write is then half done."""

    def __init__(self, end_in: int | None) -> None:
        self.calls = 0
        self.file_writes = 0  # those of the calls that write into a file which then replaces another
        self.end_in = end_in
        for name in ("fsync", "replace", "rename", "unlink", "mkdir", "ftruncate"):
            setattr(os, name, self.before(getattr(os, name)))
        os.write = self.within(os.write)
        killer, really_open = self, builtins.open

        class File(io.FileIO):
            def write(self, content: Any) -> int:
                killer.file_writes += 1
                return killer.within(super().write)(content)

        def open_file(path: Any, mode: str = "r", *rest: Any, opener: Any = None, **options: Any) -> Any:
            if mode == "wb":
                return io.BufferedWriter(File(path, "w", opener=opener))
            return really_open(path, mode, *rest, opener=opener, **options)

        builtins.open = open_file

    def count(self) -> bool:
        self.calls += 1
        return self.calls == self.end_in

    def before(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            if self.count():
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **options)

        return counted

    def within(self, write: Callable[..., int]) -> Callable[..., int]:
        def counted(*arguments: Any) -> int:
            if self.count():
                write(*arguments[:-1], bytes(arguments[-1])[: len(arguments[-1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return write(*arguments)

        return counted


# In the process that forks.


def fork(folder: str, settings: dict[str, Any], seconds: float | None, end_in: int | None) -> dict[str, Any]:
    """Trains in a child process that ends by itself, or is killed after so many seconds or in one of its calls."""
    began = time.perf_counter()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            really_write = os.write
            killer = Killer(end_in)
            train_as_a_user_does(Path(folder), settings)
            really_write(writing, json.dumps({"calls": killer.calls, "file_writes": killer.file_writes}).encode())
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(writing)
    ended, _, _ = select.select([reading], [], [], seconds)
    if not ended:
        os.kill(child, signal.SIGKILL)
    counted = os.read(reading, 100)
    os.close(reading)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    answer = {"killed": code == -signal.SIGKILL, "code": code, "took": time.perf_counter() - began}
    return answer | json.loads(counted or "{}")


# In the process that tests.


class Forker:
    """Talks to the process that forks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names = map("run-{}".format, itertools.count())
        (folder / "fox.txt").write_text("the quick brown fox jumps over the lazy dog; " * 20)
        self.server = ForkServer(__file__)

    def new(self) -> Path:
        return self.folder / next(self.names)

    def train(
        self, run: Path, settings: dict[str, Any], *, seconds: float | None = None, end_in: int | None = None
    ) -> dict[str, Any]:
        return self.server.ask(folder=str(run), settings=settings, seconds=seconds, end_in=end_in)


@pytest.fixture(scope="module")
def forker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forker]:
    made = Forker(tmp_path_factory.mktemp("kill"))
    made.train(made.new(), SETTINGS | SHORT)  # tokenizes the text for all runs
    yield made
    made.server.close()


def kept(folder: Path) -> dict[str, Any]:
    """Everything in a run's folder but what depends on the clock."""

    def timeless(values: dict[str, Any]) -> dict[str, Any]:
        return {
            name: timeless(value) if isinstance(value, dict) else value
            for name, value in values.items()
            if name not in CLOCK
        }

    run = Run.open(folder)
    found: dict[str, Any] = {"log": [timeless(line) for line in run.read_log()]}
    found["result"] = timeless(run.record.result.to_dict())
    for name in (run.weights_path.name, "last/state.safetensors", "last/before_cooldown.safetensors"):
        tensors, metadata = load_tensors(folder / name)
        metadata |= {"progress": json.dumps(timeless(json.loads(metadata.get("progress", "{}"))))}
        found[name] = metadata
        found |= {f"{name}: {tensor}": value.flatten().view(torch.uint8).tolist() for tensor, value in tensors.items()}
    if run.teacher_path.exists():
        found |= kept_of_teacher(run.teacher_path)
    return found


def kept_of_teacher(folder: Path) -> dict[str, Any]:
    """The weights, the log and the result of a teacher that is trained, which has no states."""
    run = Run.open(folder)
    assert run.record.result is not None
    assert sorted(path.name for path in (folder / "last").iterdir()) == []
    tensors, metadata = load_tensors(run.weights_path)
    lines = [{name: value for name, value in line.items() if name not in CLOCK} for line in run.read_log()]
    weights = {f"teacher: {name}": value.flatten().view(torch.uint8).tolist() for name, value in tensors.items()}
    return {"teacher's log": lines, "teacher's step": metadata["step"], **weights}


def assert_same(run: Path, uninterrupted: dict[str, Any]) -> None:
    ours = kept(run)
    assert ours.keys() == uninterrupted.keys()
    assert [name for name in ours if ours[name] != uninterrupted[name]] == []
    assert list(run.rglob(".*.tmp")) == []


def assert_survives_random_kills(forker: Forker, settings: dict[str, Any], kills: int) -> None:
    """A run with these settings, killed at random moments, equals an uninterrupted one."""
    settings = SETTINGS | settings
    whole = forker.new()
    took = forker.train(whole, settings)["took"]
    uninterrupted = kept(whole)
    moments = random.Random(kills)
    done = 0
    while done < kills:
        run = forker.new()
        killed = 0
        while killed < 4 and forker.train(run, settings, seconds=moments.uniform(0, took))["killed"]:
            killed += 1
        if killed == 4:
            forker.train(run, settings)
        assert_same(run, uninterrupted)
        done += killed


def assert_survives_kills_in_writes(forker: Forker, settings: dict[str, Any], every: int) -> None:
    """A short run with these settings, killed in each `every`-th call that writes to disk, equals that run."""
    settings = SETTINGS | settings | SHORT
    whole = forker.new()
    counted = forker.train(whole, settings)
    calls = counted["calls"]
    uninterrupted = kept(whole)
    assert calls > 50
    assert counted["file_writes"] > 10
    for call in range(1, calls + 1, every):
        run = forker.new()
        assert forker.train(run, settings, end_in=call)["killed"], f"call {call}"
        assert not forker.train(run, settings)["killed"]
        assert_same(run, uninterrupted)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        serve(fork)
