"""Events on their way to TensorBoard and Weights & Biases: what is written, once, and what happens when it is not."""

import importlib.util
import io
import math
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from minigpt.cli.trackers import _TRACKERS, _Tracker, check_trackers, tracking
from minigpt.config import TrainConfig
from minigpt.errors import ConfigError
from minigpt.storage.run import Run
from minigpt.storage.run_record import RunRecord
from minigpt.training.events import Evaluation, Event, Finished, Notice, Sample, Saved, Step


def step(number: int, loss: float = 2.5) -> Step:
    return Step(
        step=number, progress=0.5, loss=loss, learning_rate=1e-3, gradient_norm=0.7, tokens=64 * number, seconds=1.0,
        seconds_left=1.0, tokens_per_second=1000.0,
    )  # fmt: skip


def evaluation(number: int) -> Evaluation:
    return Evaluation(step=number, validation_loss=2.0, bits_per_byte=1.5, tokens=1, seconds=1.0, best=True)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    folder = tmp_path / "a fox"
    folder.mkdir()
    return Run(folder, RunRecord(started="2026-11-21T07:00:00+0000", training=TrainConfig(steps=9)))


class Out(Console):
    """A console whose lines can be asked for."""

    def __init__(self) -> None:
        super().__init__(file=io.StringIO(), width=200)

    @property
    def text(self) -> str:
        assert isinstance(self.file, io.StringIO)
        return self.file.getvalue()


def follow(name: str, run: Run, events: Iterable[Event]) -> str:
    """Tracks the events as one process does; returns what it said."""
    out = Out()
    with tracking([name], run, out) as track:
        for event in events:
            track(event)
    return out.text


class Wandb(types.ModuleType):
    """Stands in for the package: keeps what it is given."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.__spec__ = ModuleSpec("wandb", None)
        self.begun: list[dict[str, Any]] = []
        self.logged: list[tuple[int, dict[str, Any]]] = []
        self.finished = 0
        self.fail: Callable[[], None] = lambda: None

    def init(self, **arguments: Any) -> "Wandb":
        self.fail()
        self.begun.append(arguments)
        return self

    def log(self, figures: dict[str, Any], step: int) -> None:
        self.fail()
        self.logged.append((step, figures))

    def finish(self) -> None:
        self.finished += 1

    @staticmethod
    def Html(text: str) -> str:  # noqa: N802
        return text


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Wandb:
    module = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def test_a_missing_package_is_one_sentence_with_the_command_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for name in ("tensorboard", "wandb"):
        sentence = rf"--log {name} needs the package {name}; install it with: pip install 'minigpt\[{name}\]'$"
        with pytest.raises(ConfigError, match=sentence):
            check_trackers([name])


def test_an_unknown_tracker_is_told_which_there_are() -> None:
    with pytest.raises(ConfigError, match=r"log \('aim'\) must be one of tensorboard, wandb"):
        check_trackers(["aim"])


def test_wandb_is_given_the_runs_name_and_record_and_every_figure(run: Run, wandb: Wandb) -> None:
    events = [evaluation(0), step(1), Notice(1, "so"), Saved(1, run.directory, "last"), Sample(1, "<a", " & b>")]
    said = follow("wandb", run, [*events, Finished(1, "length", 1, 1.9, None, 10, 2.0)])
    assert said == ""
    (begun,) = wandb.begun
    assert begun["name"] == "a fox"
    assert begun["config"] == run.record.to_dict()
    assert begun["dir"] == str(run.directory)
    assert "mode" not in begun  # WANDB_MODE decides
    assert wandb.logged == [
        (0, {"validation/loss": 2.0, "validation/bits_per_byte": 1.5}),
        (1, {"train/loss": 2.5, "train/learning_rate": 1e-3, "train/gradient_norm": 0.7,
             "train/tokens_per_second": 1000.0}),
        (1, {"sample": "<pre>&lt;a &amp; b&gt;</pre>"}),
        (1, {"best/validation_loss": 1.9}),
    ]  # fmt: skip
    assert wandb.finished == 1


def test_wandb_goes_on_with_the_same_run_and_the_project_of_the_environment(
    run: Run, wandb: Wandb, monkeypatch: pytest.MonkeyPatch
) -> None:
    follow("wandb", run, [step(1)])
    monkeypatch.setenv("WANDB_PROJECT", "foxes")
    follow("wandb", run, [step(2)])
    first, second = wandb.begun
    assert first["id"] == second["id"] == "a-fox-2026-11-21T07-00-00-0000"
    assert second["resume"] == "allow"
    assert (first["project"], second["project"]) == ("minigpt", "foxes")


def test_a_tracker_that_fails_is_said_once_and_training_goes_on(run: Run, wandb: Wandb) -> None:
    def fail() -> None:
        raise OSError("no network\nand a long story")

    out = Out()
    with tracking(["wandb", "wandb"], run, out) as track:
        track(step(1))
        wandb.fail = fail
        track(step(2))
        track(step(3))
    assert out.text == "wandb takes no more figures (no network); training goes on without it\n"
    assert len(wandb.begun) == 1  # named twice is named once
    assert [number for number, _ in wandb.logged] == [1]


def test_a_tracker_that_cannot_start_closes_those_that_have(
    run: Run, wandb: Wandb, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(_Tracker):
        def __init__(self, _: Run) -> None:
            raise RuntimeError("no room")

    monkeypatch.setitem(_TRACKERS, "json", Broken)  # a module that is there
    with (
        pytest.raises(ConfigError, match=r"--log json cannot start \(no room\)"),
        tracking(["wandb", "json"], run, Out()),
    ):
        pass
    assert (len(wandb.begun), wandb.finished) == (1, 1)


def test_a_tracker_that_cannot_start_is_one_sentence(run: Run, wandb: Wandb) -> None:
    def fail() -> None:
        raise RuntimeError("api_key not configured")

    wandb.fail = fail
    sentence = (
        r"--log wandb cannot start \(api_key not configured\); log in by `wandb login`, or set WANDB_MODE=offline"
    )
    with pytest.raises(ConfigError, match=sentence):
        follow("wandb", run, [])


def test_a_tracker_is_closed_when_training_fails(run: Run, wandb: Wandb) -> None:
    def events() -> Iterator[Event]:
        yield step(1)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        follow("wandb", run, events())
    assert len(wandb.logged) == 1
    assert wandb.finished == 1


def drawn(run: Run) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows of the run: every chart's steps and values."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run.directory / "tensorboard"))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


real = pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="tensorboard is not installed")


@real
def test_it_shows_every_figure_at_its_step(run: Run) -> None:
    events = [evaluation(0), step(1, 3.0), step(2, 2.0), evaluation(2), Finished(2, "length", 2, 1.9, 1.4, 10, 2.0)]
    assert follow("tensorboard", run, events) == ""
    charts = drawn(run)
    assert charts["train/loss"] == [(1, 3.0), (2, 2.0)]
    assert charts["validation/bits_per_byte"] == [(0, 1.5), (2, 1.5)]
    assert charts["best/validation_loss"] == [(2, pytest.approx(1.9))]
    assert {"train/learning_rate", "train/gradient_norm", "train/tokens_per_second"} <= charts.keys()


@real
def test_a_resumed_run_shows_every_step_once(run: Run) -> None:
    follow("tensorboard", run, [evaluation(0), *(step(n, n) for n in range(1, 9)), evaluation(8)])
    follow("tensorboard", run, [step(n, 10 * n) for n in range(6, 11)])  # the last save was of step 5
    charts = drawn(run)
    assert charts["train/loss"] == [(n, n if n < 6 else 10 * n) for n in range(1, 11)]
    assert charts["validation/loss"] == [(0, 2.0)]  # that of step 8 will come again


@real
def test_an_evaluation_first_after_resuming_hides_no_step_that_is_done(run: Run) -> None:
    follow("tensorboard", run, [step(1, 1.0), step(2, 2.0)])
    follow("tensorboard", run, [evaluation(2), step(3, 3.0)])
    assert drawn(run)["train/loss"] == [(1, 1.0), (2, 2.0), (3, 3.0)]


@real
def test_a_run_that_goes_back_by_itself_shows_every_step_once(run: Run) -> None:
    steps = [step(1, 1.0), step(2, 2.0), step(3, math.inf), Notice(2, "went back"), step(3, 30.0), step(4, 4.0)]
    follow("tensorboard", run, steps)
    assert drawn(run)["train/loss"] == [(1, 1.0), (2, 2.0), (3, 30.0), (4, 4.0)]


@real
def test_what_a_saved_state_goes_on_from_is_on_the_disk(run: Run) -> None:
    with tracking(["tensorboard"], run, Out()) as track:
        track(Saved(0, run.directory, "last"))
        track(step(1, 1.0))
        track(Saved(1, run.directory, "last"))
        assert drawn(run)["train/loss"] == [(1, 1.0)]  # while the run goes on, as a kill would find it


@real
def test_samples_are_shown_as_they_are(run: Run) -> None:
    follow("tensorboard", run, [Sample(3, "# To", " be\n* or not")])
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run.directory / "tensorboard"))
    events.Reload()
    (sample,) = events.Tensors("sample/text_summary")
    assert sample.step == 3
    assert sample.tensor_proto.string_val == [b"    # To be\n    * or not"]
