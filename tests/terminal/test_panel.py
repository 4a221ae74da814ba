"""The live panel of a run fits into the terminal."""

import math
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from rich.cells import cell_len
from rich.console import Console

from minigpt.cli.render.training_display import TrainingDisplay
from minigpt.runs.events import Started
from minigpt.terminal.panel import packed, panel, peak_memory, sparkline
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


@pytest.mark.parametrize(("has_validation", "said"), [(True, "last evaluation …"), (False, "saving the model …")])
def test_after_the_last_step_the_panel_says_what_happens_instead_of_the_time_left(
    has_validation: bool, said: str
) -> None:
    out = Console(file=StringIO(), force_terminal=True, width=120)
    display = TrainingDisplay(LONG, out)
    with display:
        if has_validation:
            display.show(Evaluation(0, 2.0, 2.0, 100, 1.0, best=True))
        for number, text in ((99, "0:01 left"), (100, said)):
            display.show(replace(STEP, step=number, progress=number / 100, seconds_left=1.0))
            with out.capture() as captured:
                out.print(panel(display))
            assert text in captured.get()
    assert "left" not in captured.get()


@pytest.mark.parametrize("losses", [(math.nan,), (2.0, math.nan, 1.0), (math.inf, 3.0)])
def test_a_nan_or_infinite_loss_does_not_break_the_panel(losses: tuple[float, ...]) -> None:
    out = Console(file=StringIO(), force_terminal=True, width=120)
    display = TrainingDisplay(LONG, out)
    for number, loss in enumerate(losses, 1):
        display.show(replace(STEP, step=number, loss=loss))
        out.print(panel(display))


def test_the_peak_memory_on_windows_is_what_the_system_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil.Process, "memory_info", lambda _: SimpleNamespace(peak_wset=700))
    monkeypatch.setattr(sys, "platform", "win32")
    assert peak_memory(torch.device("cpu")) == 700


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_peak_memory_on_a_cpu_is_the_resident_set_of_the_process_in_bytes() -> None:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines())
    kilobytes = int(status["VmHWM"].removesuffix("kB"))
    assert peak_memory(torch.device("cpu")) == pytest.approx(kilobytes * 1024, rel=0.02)
