"""The lines and panels of a training run, drawn from made-up events."""

import math
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from minigpt.cli.render.console import progress_bar
from minigpt.cli.render.training_display import TrainingDisplay
from minigpt.runs.events import Started
from minigpt.training.events import Step

STARTED = Started(Path("fox"), 0, "cpu", 100, 800, ())


def step(number: int, loss: float = 2.0, *, rate: float = 800.0) -> Step:
    """One of 100 steps of 800 tokens."""
    return Step(number, number / 100, loss, 1e-3, 1.0, 800 * number, float(number), 1.0, rate)


@pytest.mark.parametrize("losses", [(math.nan,), (2.0, math.nan, 1.0), (math.inf, 3.0)])
def test_a_nan_or_infinite_loss_does_not_break_the_display(losses: tuple[float, ...]) -> None:
    out = Console(file=StringIO(), force_terminal=True, width=120)
    display = TrainingDisplay(STARTED, out)
    with display:
        for number, loss in enumerate(losses, 1):
            display.show(step(number, loss))
    finite = [loss for loss in losses if math.isfinite(loss)]
    assert display.losses == finite
    assert display.smoothed == (pytest.approx(sum(finite) / len(finite)) if finite else None)


@pytest.mark.parametrize("settings", [{"_environ": {"TERM": "dumb"}}, {"force_interactive": False}])
def test_a_terminal_that_cannot_redraw_lines_gets_plain_lines(settings: dict[str, Any]) -> None:
    out = Console(file=StringIO(), force_terminal=True, highlight=False, width=200, **settings)
    with TrainingDisplay(STARTED, out) as display:
        display.show(step(1))
    assert "step 1/100" in out.file.getvalue()  # type: ignore[attr-defined]


def test_a_terminal_that_cannot_redraw_lines_gets_no_progress_bar() -> None:
    out = Console(file=StringIO(), force_terminal=True, force_interactive=False)
    with progress_bar(out, "reading") as progress:
        progress(1, 2)
    assert out.file.getvalue() == ""  # type: ignore[attr-defined]


def test_the_smoothed_loss_is_the_mean_of_the_first_steps_and_later_of_the_last_ones() -> None:
    display = TrainingDisplay(STARTED, Console(file=StringIO()))
    for number in range(1, 21):
        display.show(step(number, float(number)))
    assert display.smoothed == pytest.approx(10.5)
    display.show(step(21, 30.5))
    assert display.smoothed == pytest.approx(11.5)  # 5 % of the newest


def test_a_step_without_a_scored_token_has_no_loss_and_a_diverged_one_has() -> None:
    out = Console(file=StringIO(), width=200)
    display = TrainingDisplay(STARTED, out)
    display.show(step(1, math.nan))
    display.show(replace(step(2, math.nan), skipped=True))
    first, second = out.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert "loss -  " in first
    assert "loss nan  " in second


def test_the_speed_shown_is_the_tokens_of_the_last_steps_over_their_seconds() -> None:
    out = Console(file=StringIO(), width=200)
    display = TrainingDisplay(STARTED, out)
    display.show(step(1, rate=1.0))  # 800 seconds
    for number in range(2, 23):
        display.show(step(number, rate=100.0 if number % 2 else 800.0))  # 8 seconds, 1 second
    assert display.tokens_per_second() == pytest.approx(20 * 800 / (10 * 8 + 10 * 1))
    assert "178 tokens/s" in out.file.getvalue()  # type: ignore[attr-defined]


def test_a_line_of_a_step_is_not_broken_where_the_output_is_narrow() -> None:
    out = Console(file=StringIO(), width=40)
    display = TrainingDisplay(STARTED, out)
    display.show(step(1))
    (line,) = out.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert line == "step 1/100  loss 2.0000  800 tokens/s  learning rate 0.001  0:01 left"


def test_a_run_that_rolls_back_prints_its_steps_again() -> None:
    out = Console(file=StringIO(), width=200)
    display = TrainingDisplay(STARTED, out)
    for number in (*range(1, 61), *range(21, 31)):
        display.show(step(number))
    printed_steps = [int(line.split()[1].split("/")[0]) for line in out.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert printed_steps[-7:] == [60, 21, 22, 24, 26, 28, 30]
