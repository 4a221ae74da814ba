"""What a plan is drawn up from: the machine's memory, and the arithmetic of its device."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from minigpt.cli.render.console import console
from minigpt.cli.train_job import Request, draw_up
from minigpt.config import TrainConfig
from minigpt.errors import ConfigError


def request(text: Path, **given: Any) -> Request:
    return Request(
        sources=[str(text)], name=None, checkpoints=text.parent / "checkpoints", preset=None, tokenizer="bytes",
        base=None, reading={}, given=given,
    )  # fmt: skip


@pytest.mark.parametrize("given", [{}, {"dtype": "auto"}])
def test_the_arithmetic_of_a_gpu_is_recorded_by_its_name(
    here: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    asked = []

    def seconds_per_step(_model: object, config: TrainConfig, **_rest: object) -> float:
        asked.append(config.dtype)
        return 0.1

    monkeypatch.setattr("minigpt.device.resolve_device", lambda _: torch.device("mps"))
    monkeypatch.setattr("minigpt.device.resolve_dtype", lambda *_: torch.bfloat16)
    monkeypatch.setattr("minigpt.planning.throughput.seconds_per_step", seconds_per_step)
    draft = draw_up(request(here / "fox.txt", **given), console(), 1, 1)
    assert draft.plan.training.dtype == "bfloat16"
    assert set(asked) == {"bfloat16"}


@pytest.mark.parametrize(("given", "said"), [({"compile": "on"}, True), ({}, False), ({"compile": "off"}, False)])
def test_a_plan_says_where_the_run_is_compiled_that_its_speed_is_not_yet(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], given: dict[str, Any], said: bool
) -> None:
    monkeypatch.setattr("minigpt.planning.throughput.seconds_per_step", lambda *_, **__: 0.1)
    draw_up(request(here / "fox.txt", device="cpu", **given), console(), 1, 1)
    assert ("the speed was measured before torch.compile" in capsys.readouterr().err) is said


def test_a_plan_is_bounded_by_the_memory_that_is_free_before_anything_is_measured(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minigpt.device.free_memory", lambda _: 10**6)
    monkeypatch.setattr("minigpt.planning.throughput.seconds_per_step", lambda *_, **__: pytest.fail("measured"))
    with pytest.raises(ConfigError, match=r"0\.0 GB are free: no preset fits"):
        draw_up(request(here / "fox.txt", dtype="float32"), console(), 1, 1)


@pytest.mark.parametrize(("on_this_machine", "at_once"), [(1, None), (2, 4)])
def test_the_processes_on_one_machine_share_its_memory_and_those_on_others_do_not(
    here: Path, monkeypatch: pytest.MonkeyPatch, on_this_machine: int, at_once: int | None
) -> None:
    monkeypatch.setattr("minigpt.planning.throughput.seconds_per_step", lambda *_, **__: 0.1)
    options: dict[str, Any] = {"dtype": "float32", "context_length": 64, "n_layer": 1, "n_embd": 16, "n_head": 1}
    needs = draw_up(request(here / "fox.txt", batch_size=8, **options), console(), 1, 1).plan.memory
    monkeypatch.setattr("minigpt.device.free_memory", lambda _: 2 * needs - 2)
    made = draw_up(request(here / "fox.txt", batch_size=16, **options), console(), 2, on_this_machine).plan
    assert made.training.micro_batch_size == at_once


def test_minutes_that_are_over_before_the_first_step_are_refused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minigpt.planning.throughput.seconds_per_step", lambda *_, **__: 4.0)
    with pytest.raises(ConfigError, match=r"minutes \(0\.05\) are over before .* a step takes 4 s; give"):
        draw_up(request(here / "fox.txt", dtype="float32", minutes=0.05), console(), 1, 1)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"steps": 10**20}, "more than a hundred years"),
        ({"epochs": 1e99}, "more than a hundred years"),
        ({"minutes": 1e99}, "more than a hundred years"),
        ({"minutes": 3000.0}, r"done at 20\d\d-\d\d-\d\d \d\d:\d\d "),
        ({"minutes": 3.0}, r"done at \d\d:\d\d:\d\d "),
        ({"batch_tokens": 64}, r"64 tokens per step +--batch-tokens"),
    ],
)
def test_a_plan_says_when_it_will_be_done_however_long_that_is(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], given: dict[str, Any], said: str
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr("minigpt.planning.throughput.seconds_per_step", lambda *_, **__: 0.1)
    draw_up(request(here / "fox.txt", dtype="float32", **given), console(), 1, 1)
    assert re.search(said, capsys.readouterr().err)


def test_a_model_too_wide_for_any_machine_is_refused_for_its_memory(here: Path) -> None:
    with pytest.raises(ConfigError, match=r"takes about .* GB, but"):
        draw_up(request(here / "fox.txt", dtype="float32", n_embd=10**9, steps=3), console(), 1, 1)
