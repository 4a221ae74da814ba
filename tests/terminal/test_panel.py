"""The live panel of a run fits into the terminal."""

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from minigpt.cli.render.training_display import TrainingDisplay
from minigpt.runs.events import Started
from minigpt.terminal.panel import packed, panel, sparkline
from minigpt.training.events import Evaluation, Step

LONG = Started(Path("a_very_long_name_of_a_run_about_日本の小説_and_others"), 0, "cpu", 1_234_567, 800, ())
CHAT = replace(LONG, scored_text="of the assistant's turns only")
STEP = Step(123_456, 0.42, 11.25, 1.23e-5, 1.0, 8_000_000, 36_610.0, 37_230.0, 12_345.6)


def lines_of(started: Started, width: int, *, stopping: bool = False, evaluated: bool = True) -> list[str]:
    out = Console(file=StringIO(), width=width, highlight=False)
    display = TrainingDisplay(started, out)
    if evaluated:
        display.show(Evaluation(0, 10.8249, 3.9017, 0, 1.0, best=True))
    display.losses = [5.0, 4.0, 3.0] * 40
    display.last_step, display.smoothed, display.recent = STEP, 10.5, display.recent.__class__([0.1])
    display.stopping = stopping
    drawn = Console(file=StringIO(), width=width, highlight=False)
    drawn.print(panel(display))
    return drawn.file.getvalue().splitlines()  # type: ignore[attr-defined]


@pytest.mark.parametrize("started", [LONG, CHAT])
@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_of_the_panel_is_wrapped_or_cut(started: Started, width: int) -> None:
    wide = " ".join(lines_of(started, 400, stopping=True)).split()[1:]
    lines = lines_of(started, width, stopping=True)
    from rich.cells import cell_len

    assert max(map(cell_len, lines)) <= width
    shown = " ".join(lines).split()
    assert [word for word in wide if not set(word) & set("━▁█…a_")] == [
        word for word in shown if not set(word) & set("━▁█…a_")
    ]
    assert "42%" in lines[0]
    assert "10:10:10 elapsed, 10:20:30 left" in lines[0]


def test_in_80_columns_the_panel_has_four_lines() -> None:
    lines = lines_of(Started(Path("sherlock_holmes"), 0, "cpu", None, 800, ()), 80)
    assert len(lines) == 4
    assert lines[1].split("  ")[0] == "step 123,456"


@pytest.mark.parametrize("width", [1, 10, 30])
def test_a_line_that_is_too_wide_for_a_tiny_terminal_is_cut(width: int) -> None:
    assert len(lines_of(LONG, width)) == len(lines_of(LONG, width, evaluated=True)) >= 4
    assert all(len(line) <= width for line in lines_of(LONG, width))


def test_cells_are_packed_into_as_few_lines_as_they_need() -> None:
    assert packed(["one", "two  ", "three"], 8) == ["one  two  ", "three"]
    assert packed(["one", "two", "three"], 7) == ["one", "two", "three"]
    assert packed(["longer than that", "x"], 4) == ["longer than that", "x"]
    assert packed([], 4) == []


def test_a_sparkline_draws_the_means_of_neighbors() -> None:
    assert sparkline([], 10) == ""
    assert sparkline([3.0, 3.0], 10) == "▁▁"
    assert sparkline([8.0, 8.0, 1.0, 1.0], 2) == "█▁"
