"""The loggers for TensorBoard and Weights & Biases: every event is written once, and an error does not end training."""

import importlib.util
import math
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from builders import new_model, new_run
from fake_wandb import Wandb

from minigpt.config import TrainConfig
from minigpt.errors import ConfigError, MissingPackageError
from minigpt.loggers.loggers import open_loggers
from minigpt.loggers.settings import LoggerSettings
from minigpt.storage.run import Run
from minigpt.storage.run_record import RunRecord
from minigpt.tokenizer.tokenizer import Tokenizer
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


def log_events(name: str, run: Run, events: Iterable[Event]) -> list[str]:
    """Logs the events as one process does; returns the failures that it reported."""
    reports: list[str] = []
    with open_loggers([name], run, reports.append, run.directory.name) as write:
        for event in events:
            write(event)
    return reports


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Wandb:
    module = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def test_a_missing_package_is_one_sentence_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tensorboard", "wandb"):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(MissingPackageError, match=f"^--log {name} needs {name}, which is not installed; run: "):
            LoggerSettings(log=(name,))


def test_an_unknown_logger_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"log \('aim'\) must be one of tensorboard, wandb"):
        LoggerSettings(log=("aim",))


def test_wandb_receives_the_runs_name_its_record_and_every_metric(run: Run, wandb: Wandb) -> None:
    events = [evaluation(0), step(1), Notice(1, "so"), Saved(1, run.directory, "last"), Sample(1, "<a", " & b>")]
    reports = log_events("wandb", run, [*events, Finished(1, "length", 1, 1.9, None, 10, 2.0)])
    assert reports == []
    (started,) = wandb.runs
    assert started["name"] == "a fox"
    assert started["config"] == run.record.to_dict()
    assert started["dir"] == str(run.directory)
    assert "mode" not in started  # WANDB_MODE decides
    assert wandb.logged == [
        (0, {"validation/loss": 2.0, "validation/bits_per_byte": 1.5}),
        (1, {"train/loss": 2.5, "train/learning_rate": 1e-3, "train/gradient_norm": 0.7,
             "train/tokens_per_second": 1000.0}),
        (1, {"sample": "<pre>&lt;a &amp; b&gt;</pre>"}),
        (1, {"best/validation_loss": 1.9}),
    ]  # fmt: skip
    assert wandb.finished == 1


def test_a_step_without_a_scored_token_logs_no_loss_and_a_diverged_one_does(run: Run, wandb: Wandb) -> None:
    log_events("wandb", run, [step(1, math.nan), replace(step(2, math.nan), skipped=True)])
    assert ["train/loss" in metrics for _, metrics in wandb.logged] == [False, True]


def test_wandb_continues_the_same_run_in_the_project_of_the_environment(
    run: Run, wandb: Wandb, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_events("wandb", run, [step(1)])
    monkeypatch.setenv("WANDB_PROJECT", "foxes")
    log_events("wandb", run, [step(2)])
    first, second = wandb.runs
    assert first["id"] == second["id"] == "a-fox-2026-11-21T07-00-00-0000"
    assert second["resume"] == "allow"
    assert (first["project"], second["project"]) == ("minigpt", "foxes")


def test_a_logger_that_fails_is_reported_once_and_training_continues(run: Run, wandb: Wandb) -> None:
    def fail() -> None:
        raise OSError("no network\nand a long story")

    reports: list[str] = []
    with open_loggers(["wandb", "wandb"], run, reports.append, run.directory.name) as write:
        write(step(1))
        wandb.fail = fail
        write(step(2))
        write(step(3))
    assert reports == ["wandb failed (no network); training continues without it"]
    assert len(wandb.runs) == 1  # named twice is named once
    assert [number for number, _ in wandb.logged] == [1]


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Run]:
    """A run that trains, and so can lose its folder."""
    run = new_run(tmp_path / "fox", new_model(n_layer=1))
    run.lock()
    yield run
    run.unlock()


def lose_folder(run: Run, *, is_replaced: bool) -> None:
    shutil.rmtree(run.directory)
    if is_replaced:
        run.directory.mkdir()


def relocate(run: Run) -> None:
    run.relocate(new_model(n_layer=1), Tokenizer.named("bytes"), 3)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows refuses to remove a folder that is in use")
@pytest.mark.parametrize("is_replaced", [False, True])
def test_after_the_folder_was_lost_wandb_continues_the_same_run_in_the_new_one(
    locked: Run, wandb: Wandb, is_replaced: bool
) -> None:
    before = locked.directory
    with open_loggers(["wandb"], locked, pytest.fail, locked.directory.name) as write:
        write(step(1))
        lose_folder(locked, is_replaced=is_replaced)
        write(step(2))  # the next save finds that the folder is lost
        relocate(locked)
        write(step(3))
    assert [number for number, _ in wandb.logged] == [1, 3]
    first, second = wandb.runs
    assert (first["id"], first["dir"]) == (second["id"], str(before))
    assert second["dir"] == str(locked.directory)
    assert (locked.directory / "wandb").is_dir()
    assert wandb.finished == 2
    if is_replaced:
        assert list(before.iterdir()) == []


def test_a_logger_is_closed_when_training_fails(run: Run, wandb: Wandb) -> None:
    def events() -> Iterator[Event]:
        yield step(1)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        log_events("wandb", run, events())
    assert len(wandb.logged) == 1
    assert wandb.finished == 1


def charts_of(run: Run) -> dict[str, list[tuple[int, float]]]:
    """The steps and values of every chart that TensorBoard shows of the run."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run.directory / "tensorboard"))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


real = pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="tensorboard is not installed")


@real
def test_tensorboard_shows_every_metric_at_its_step(run: Run) -> None:
    events = [evaluation(0), step(1, 3.0), step(2, 2.0), evaluation(2), Finished(2, "length", 2, 1.9, 1.4, 10, 2.0)]
    assert log_events("tensorboard", run, events) == []
    charts = charts_of(run)
    assert charts["train/loss"] == [(1, 3.0), (2, 2.0)]
    assert charts["validation/bits_per_byte"] == [(0, 1.5), (2, 1.5)]
    assert charts["best/validation_loss"] == [(2, pytest.approx(1.9))]
    assert {"train/learning_rate", "train/gradient_norm", "train/tokens_per_second"} <= charts.keys()


@real
def test_a_resumed_run_shows_every_step_once(run: Run) -> None:
    log_events("tensorboard", run, [evaluation(0), *(step(n, n) for n in range(1, 9)), evaluation(8)])
    log_events("tensorboard", run, [step(n, 10 * n) for n in range(6, 11)])  # the last save was of step 5
    charts = charts_of(run)
    assert charts["train/loss"] == [(n, n if n < 6 else 10 * n) for n in range(1, 11)]
    assert charts["validation/loss"] == [(0, 2.0)]  # the run will evaluate step 8 again


@real
def test_an_evaluation_right_after_resuming_hides_no_earlier_step(run: Run) -> None:
    log_events("tensorboard", run, [step(1, 1.0), step(2, 2.0)])
    log_events("tensorboard", run, [evaluation(2), step(3, 3.0)])
    assert charts_of(run)["train/loss"] == [(1, 1.0), (2, 2.0), (3, 3.0)]


@real
def test_a_run_that_rolls_back_shows_every_step_once(run: Run) -> None:
    steps = [step(1, 1.0), step(2, 2.0), step(3, math.inf), Notice(2, "rolled back"), step(3, 30.0), step(4, 4.0)]
    log_events("tensorboard", run, steps)
    assert charts_of(run)["train/loss"] == [(1, 1.0), (2, 2.0), (3, 30.0), (4, 4.0)]


@real
@pytest.mark.skipif(sys.platform == "win32", reason="Windows refuses to remove a folder that is in use")
@pytest.mark.parametrize("is_replaced", [False, True])
def test_after_the_folder_was_lost_tensorboard_continues_in_the_new_one(locked: Run, is_replaced: bool) -> None:
    before = locked.directory
    with open_loggers(["tensorboard"], locked, pytest.fail, locked.directory.name) as write:
        write(step(1, 1.0))
        lose_folder(locked, is_replaced=is_replaced)
        write(step(2, 2.0))
        relocate(locked)
        write(step(3, 3.0))
        write(Saved(3, locked.directory, "last"))
        assert charts_of(locked)["train/loss"] == [(3, 3.0)]
        write(step(4, 4.0))
    assert charts_of(locked)["train/loss"] == [(3, 3.0), (4, 4.0)]
    if is_replaced:
        assert list(before.iterdir()) == []


@real
def test_the_steps_before_a_save_are_on_disk(run: Run) -> None:
    with open_loggers(["tensorboard"], run, pytest.fail, run.directory.name) as write:
        write(Saved(0, run.directory, "last"))
        write(step(1, 1.0))
        write(Saved(1, run.directory, "last"))
        assert charts_of(run)["train/loss"] == [(1, 1.0)]  # before the logger is closed: the process may be killed here


@real
def test_samples_are_shown_verbatim(run: Run) -> None:
    log_events("tensorboard", run, [Sample(3, "# To", " be\n* or not")])
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run.directory / "tensorboard"))
    events.Reload()
    (sample,) = events.Tensors("sample/text_summary")
    assert sample.step == 3
    assert sample.tensor_proto.string_val == [b"    # To be\n    * or not"]
