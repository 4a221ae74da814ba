"""A plan follows the memory of the machine and the dtype of its device, and its table names all its settings."""

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import new_model

from minigpt.autoplan.measured_plan import MeasuredPlan
from minigpt.autoplan.overheads import Overheads
from minigpt.config import TrainConfig
from minigpt.distillation.settings import DistillationSettings
from minigpt.errors import ConfigError
from minigpt.lora.settings import LoraSettings
from minigpt.run_options import Request, RunOptions
from minigpt.runs.events import Event, Planned
from minigpt.runs.start_run import plan_run
from minigpt.storage.checkpoint import save_checkpoint
from minigpt.tokenizer.tokenizer import Tokenizer
from minigpt.training.budget import planned_steps
from minigpt.training.events import Notice
from minigpt.tricks.settings import TrickSettings


def events_of(text: Path, processes: int = 1, local_processes: int = 1, **given: Any) -> list[Event]:
    options = RunOptions.of({"tokenizer": "bytes", **given})
    request = Request(sources=(str(text),), checkpoints=text.parent / "checkpoints", options=options)
    return list(plan_run(request, processes, local_processes))


def plan_of(text: Path, processes: int = 1, local_processes: int = 1, **given: Any) -> MeasuredPlan:
    (planned,) = (event for event in events_of(text, processes, local_processes, **given) if isinstance(event, Planned))
    assert isinstance(planned.plan, MeasuredPlan)
    return planned.plan


def test_a_plan_with_nothing_held_out_does_not_promise_to_stop_early(here: Path) -> None:
    given: dict[str, Any] = {"steps": 2, "tokenizer": "bytes", "context_length": 8, "batch_size": 2, "patience": 5}
    for fraction, expected in ((0.1, "after 5 evaluations without improvement"), (0.0, "never")):
        rows = plan_of(here / "fox.txt", validation_fraction=fraction, **given).rows()
        assert [value for name, value, _ in rows if name == "early stop"] == [expected]


@pytest.mark.parametrize(("is_new", "rate"), [(True, 0.02), (False, 0.0)])
def test_a_text_whose_words_are_new_gets_bpe_dropout_in_one_pass(
    here: Path, monkeypatch: pytest.MonkeyPatch, is_new: bool, rate: float
) -> None:
    monkeypatch.setattr("minigpt.autoplan.throughput.seconds_per_step", lambda *_, **__: 0.1)
    (here / "words.txt").write_text("".join(f"word{number if is_new else number % 50} " for number in range(4000)))
    assert TrickSettings.of(plan_of(here / "words.txt", tokenizer="bpe:300", epochs=1).training).bpe_dropout == rate


@pytest.mark.parametrize("given", [{}, {"dtype": "auto"}])
def test_the_dtype_of_a_gpu_is_recorded_by_name(
    here: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    asked = []

    def seconds_per_step(_model: object, config: TrainConfig, **_rest: object) -> float:
        asked.append(config.dtype)
        return 0.1

    monkeypatch.setattr("minigpt.device.resolve_device", lambda _: torch.device("mps"))
    monkeypatch.setattr("minigpt.device.resolve_dtype", lambda *_: torch.bfloat16)
    monkeypatch.setattr("minigpt.autoplan.throughput.seconds_per_step", seconds_per_step)
    plan = plan_of(here / "fox.txt", **given)
    assert plan.training.dtype == "bfloat16"
    assert set(asked) == {"bfloat16"}


@pytest.mark.parametrize("busy", ["never", "at first", "but for the last measurements"])
def test_a_run_is_planned_again_if_another_program_slowed_the_first_measurements(
    here: Path, monkeypatch: pytest.MonkeyPatch, busy: str
) -> None:
    n_last = 0

    def seconds_per_step(*_: object, seconds: float = 0.4, **_rest: object) -> float:
        nonlocal n_last
        n_last += seconds > 0.4
        is_slow = {"never": False, "at first": n_last == 0, "but for the last measurements": seconds <= 0.4}
        return 1.0 if is_slow[busy] else 0.01

    monkeypatch.setattr("minigpt.autoplan.throughput.seconds_per_step", seconds_per_step)
    plan = plan_of(here / "fox.txt", minutes=10, dtype="float32", device="cpu")
    assert DistillationSettings.of(plan.training).distill == "on"
    assert plan.settings.seconds_per_step == 0.01
    assert n_last == (2 if busy == "never" else 3)  # a plan with a teacher measures both kinds of steps


@pytest.mark.parametrize(("minutes", "distill", "expected"), [(0.5, "off", 1), (5, "off", 2.4), (60, "on", 5)])
def test_the_last_measurement_is_longer_in_a_longer_run(
    here: Path, monkeypatch: pytest.MonkeyPatch, minutes: float, distill: str, expected: float
) -> None:
    asked: list[float] = []

    def seconds_per_step(*_: object, seconds: float = 0.4, **_rest: object) -> float:
        asked.append(seconds)
        return 0.01

    monkeypatch.setattr("minigpt.autoplan.throughput.seconds_per_step", seconds_per_step)
    plan_of(here / "fox.txt", minutes=minutes, distill=distill, dtype="float32", device="cpu")
    assert asked[-1] == pytest.approx(expected)
    assert 0.4 in asked


@pytest.mark.parametrize(("last", "plans"), [(0.0097, 1), (0.009, 2)])
def test_a_run_is_planned_again_if_its_steps_are_a_tenth_faster_than_first_measured(
    here: Path, monkeypatch: pytest.MonkeyPatch, last: float, plans: int
) -> None:
    asked: list[float] = []

    def seconds_per_step(*_: object, seconds: float = 0.4, **_rest: object) -> float:
        asked.append(seconds)
        return 0.01 if seconds <= 0.4 else last

    monkeypatch.setattr("minigpt.autoplan.throughput.seconds_per_step", seconds_per_step)
    plan_of(here / "fox.txt", minutes=5, preset="nano", distill="off", dtype="float32", dropout=0.1, device="cpu")
    assert sum(seconds > 0.4 for seconds in asked) == plans


@pytest.mark.parametrize(("given", "expected"), [({"compile": "on"}, True), ({}, False), ({"compile": "off"}, False)])
def test_the_plan_of_a_compiled_run_notes_that_its_speed_was_measured_without(
    here: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], expected: bool
) -> None:
    monkeypatch.setattr("minigpt.autoplan.throughput.seconds_per_step", lambda *_, **__: 0.1)
    events = events_of(here / "fox.txt", device="cpu", **given)
    notices = [event.text for event in events if isinstance(event, Notice)]
    assert any("the speed was measured without torch.compile" in text for text in notices) is expected


@pytest.mark.parametrize(("cores", "noted"), [(0.1, False), (1.3, True)])
def test_a_plan_notes_that_other_programs_computed_while_it_measured(
    here: Path, monkeypatch: pytest.MonkeyPatch, cores: float, noted: bool
) -> None:
    monkeypatch.setattr("minigpt.autoplan.throughput.seconds_per_step", lambda *_, **__: 0.1)
    monkeypatch.setattr("minigpt.shared_cores.load_monitor.OtherPrograms.cores", lambda _: cores)
    text = str(plan_of(here / "fox.txt", dtype="float32", device="cpu"))
    assert ("this machine is doing other things: other programs used 1.3 cores" in text) == noted


@pytest.mark.parametrize(("missing", "noted"), [("there is no compiler", True), (None, False)])
def test_a_plan_for_a_cpu_notes_that_the_compiled_code_is_missing(
    here: Path, monkeypatch: pytest.MonkeyPatch, missing: str | None, noted: bool
) -> None:
    monkeypatch.setattr("minigpt.autoplan.throughput.seconds_per_step", lambda *_, **__: 0.1)
    monkeypatch.setattr("minigpt.native.compiled._library", lambda: missing)
    text = str(plan_of(here / "fox.txt", dtype="float32", device="cpu"))
    assert ("PyTorch trains the model, slower than with compiled code: there is no compiler" in text) == noted


def test_the_steps_of_a_budget_in_minutes_are_fewer_than_its_time_has(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minigpt.autoplan.throughput.seconds_per_step", lambda *_, **__: 0.1)
    plan = plan_of(here / "fox.txt", dtype="float32", minutes=1)
    assert 300 < plan.steps < 600
    assert plan.tokens_per_second == 10 * plan.settings.tokens_per_step


def test_a_plan_that_does_not_fit_into_free_memory_is_refused_before_measuring(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minigpt.device.free_memory", lambda _: 10**6)
    monkeypatch.setattr("minigpt.autoplan.throughput.seconds_per_step", lambda *_, **__: pytest.fail("measured"))
    with pytest.raises(ConfigError, match=r"0\.0 GB are free: no preset fits"):
        plan_of(here / "fox.txt", dtype="float32")


@pytest.mark.parametrize(("local_processes", "at_once"), [(1, None), (2, 4)])
def test_processes_share_the_memory_of_their_own_machine_only(
    here: Path, monkeypatch: pytest.MonkeyPatch, local_processes: int, at_once: int | None
) -> None:
    monkeypatch.setattr("minigpt.autoplan.throughput.seconds_per_step", lambda *_, **__: 0.1)
    options: dict[str, Any] = {"dtype": "float32", "context_length": 64, "n_layer": 1, "n_embd": 16, "n_head": 1}
    needs = plan_of(here / "fox.txt", 1, 1, batch_size=8, **options).settings.memory
    monkeypatch.setattr("minigpt.device.free_memory", lambda _: 2 * needs - 2)
    made = plan_of(here / "fox.txt", 2, local_processes, batch_size=16, **options)
    assert made.training.micro_batch_size == at_once


def test_minutes_that_end_before_the_first_step_are_refused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minigpt.autoplan.throughput.seconds_per_step", lambda *_, **__: 4.0)
    with pytest.raises(ConfigError, match=r"minutes \(0\.05\) are over before .* a step takes 4 s; give"):
        plan_of(here / "fox.txt", dtype="float32", minutes=0.05)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"steps": 10**18}, "more than a hundred years"),
        ({"epochs": 1e12}, "more than a hundred years"),
        ({"minutes": 1e9}, "more than a hundred years"),
        ({"minutes": 3000.0}, r"done at 20\d\d-\d\d-\d\d \d\d:\d\d "),
        ({"minutes": 3.0}, r"done at \d\d:\d\d:\d\d "),
        ({"batch_tokens": 64}, r"64 tokens per step +--batch-tokens"),
    ],
)
def test_a_plan_says_when_the_run_will_be_done_however_long_it_is(
    here: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], expected: str
) -> None:
    monkeypatch.setattr("minigpt.autoplan.throughput.seconds_per_step", lambda *_, **__: 0.1)
    assert re.search(expected, str(plan_of(here / "fox.txt", dtype="float32", **given)))


def test_the_minutes_of_a_run_begin_before_its_plan_was_measured(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minigpt.autoplan.throughput.seconds_per_step", lambda *_, **__: 0.1)
    plan = replace(plan_of(here / "fox.txt", dtype="float32", minutes=3.0), seconds=60.0)
    now = 1_800_000_000
    monkeypatch.setattr("minigpt.runs.plan.time.time", lambda: now)
    assert time.strftime("done at %H:%M:%S", time.localtime(now + 120)) in str(plan)


def test_a_plan_says_how_the_embeddings_are_trained(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minigpt.autoplan.throughput.seconds_per_step", lambda *_, **__: 0.1)
    given: dict[str, Any] = {"dtype": "float32", "tokenizer": "bpe:300"}
    often = str(plan_of(here / "fox.txt", epochs=30, **given))
    assert re.search(r"embeddings +weight decay 1 +--embedding-weight-decay\n +tokens of like spelling share", often)
    once = str(plan_of(here / "fox.txt", epochs=1, **given))
    assert re.search(r"embeddings +tokens of like spelling share updates +--no-spelling-features", once)
    plain = str(plan_of(here / "fox.txt", epochs=1, spelling_features=False, **given))
    assert "embeddings" not in plain


def test_a_model_too_wide_for_any_machine_is_refused_for_lack_of_memory(here: Path) -> None:
    with pytest.raises(ConfigError, match=r"takes about .* GB, but"):
        plan_of(here / "fox.txt", dtype="float32", n_embd=10**9, steps=3)


QUICK: dict[str, Any] = {"dtype": "float32", "context_length": 64, "n_layer": 1, "n_embd": 16, "n_head": 1}


@pytest.fixture
def base(here: Path) -> str:
    """The folder of a model to fine-tune."""
    save_checkpoint(here / "base", new_model(vocab_size=257, n_positions=64), Tokenizer.named("bytes"))
    return str(here / "base")


def test_minutes_that_evaluating_and_saving_use_up_are_refused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minigpt.autoplan.throughput.seconds_per_step", lambda *_, **__: 0.1)
    slow = Overheads(start=40, evaluation=1, saving=1, sample=1, index=0, final=1)
    monkeypatch.setattr("minigpt.autoplan.planner.Overheads.measured", lambda *_, **__: slow)
    with pytest.raises(ConfigError, match=r"minutes \(0\.5\) leave no time for training: measuring .*; give more, or"):
        plan_of(here / "fox.txt", minutes=0.5, **QUICK)


def test_an_evaluation_is_measured_with_the_model_to_fine_tune(
    here: Path, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second model of its size might not fit into memory."""
    monkeypatch.setattr("minigpt.autoplan.throughput.seconds_per_step", lambda *_, **__: 0.1)
    monkeypatch.setattr("minigpt.autoplan.throughput.GPT", pytest.fail)
    assert plan_of(here / "fox.txt", tokenizer=None, **{"from": base}, minutes=1).steps > 0


def test_the_weights_of_a_model_to_fine_tune_are_in_memory_already(
    here: Path, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minigpt.autoplan.throughput.seconds_per_step", lambda *_, **__: 0.1)
    given: dict[str, Any] = {"tokenizer": None, "from": base, "steps": 3, "batch_size": 1, "dtype": "float32"}
    plan = plan_of(here / "fox.txt", **given)
    free = plan.settings.memory - 4 * plan.model.n_parameters
    monkeypatch.setattr("minigpt.device.free_memory", lambda _: free)
    assert plan_of(here / "fox.txt", **given).training == plan.training
    monkeypatch.setattr("minigpt.device.free_memory", lambda _: free - 1)
    made = plan_of(here / "fox.txt", **given)
    assert LoraSettings.of(made.training).lora or made.training.checkpoint_activations == "on"


def test_the_steps_of_epochs_are_those_that_are_trained(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minigpt.autoplan.throughput.seconds_per_step", lambda *_, **__: 0.1)
    (here / "short.txt").write_text("a" * 150)
    plan = plan_of(here / "short.txt", epochs=3, batch_size=1, validation_fraction=0, **QUICK)
    assert plan.steps == planned_steps(plan.training, len(plan.corpus.train)) == 6  # two windows, not 2.3


@pytest.mark.parametrize("is_run", [True, False])
def test_a_name_that_is_taken_is_noted_with_the_command_that_continues_a_run(
    here: Path, monkeypatch: pytest.MonkeyPatch, is_run: bool
) -> None:
    monkeypatch.setattr("minigpt.autoplan.throughput.seconds_per_step", lambda *_, **__: 0.1)
    save_checkpoint(here / "checkpoints" / "fox", new_model(), Tokenizer.named("bytes"))
    if is_run:
        (here / "checkpoints" / "fox" / "training.json").write_text("{}")
    (note,) = (note for note in plan_of(here / "fox.txt", steps=3, **QUICK).notes if "already exists" in note)
    assert ("--resume --name fox" in note) == is_run
