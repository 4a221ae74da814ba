"""What was copied, printed while a model trains."""

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from minigpt.cli.render.annotations import annotations_of
from minigpt.cli.render.training_display import sample_panel
from minigpt.memorization.index import CopiedRun, Memorization, TrainingLocation
from minigpt.memorization.words import Extent
from minigpt.runs.events import Started
from minigpt.training.events import Sample

STARTED = Started(Path("fox"), 0, "cpu", 100, 800, ())


def copying(text: str, copied: str, words: int) -> Memorization:
    start = text.index(copied)
    run = CopiedRun(start, start + len(copied), Extent(words), 0, 1)
    long = words >= 8
    return Memorization(Extent(10), (run,), 8, Extent(words if long else 0), ((run.start, run.end),) if long else ())


def panel(sample: Sample, *, width: int = 160) -> str:
    out = Console(file=StringIO(), width=width)
    out.print(sample_panel(sample, annotations_of(STARTED)))
    return out.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_a_sample_shows_what_is_copied_how_much_and_from_where() -> None:
    text = " new\x1b[31m one two three four five six seven eight [bold]new\n"
    found = copying(text, "one two three four five six seven eight", 8)
    shown = panel(Sample(1200, "Once", text, {"memorization": found, "location": TrainingLocation(2, 93)}))
    assert "sample at step 1,200" in shown
    assert "Once new␛[31m ⟦one two three four five six seven eight⟧¹ [bold]new" in shown
    assert "copied from the training text: 80% of 10 words, in runs of 8 words or more; longest run 8 words" in shown
    assert "longest run 8 words (39 characters)" in shown
    assert "¹ 8 words “one two three four five six seven eight”: the training text, document 2, line 93" in shown


@pytest.mark.parametrize("width", [40])
def test_a_narrow_terminal_shows_everything(width: int) -> None:
    text = " one two three four five six seven eight"
    measured = {"memorization": copying(text, text.strip(), 8), "location": TrainingLocation(2, 93)}
    shown = panel(Sample(1, "", text, measured), width=width)
    assert "line 93" in " ".join(shown.replace("│", " ").split())
    assert max(map(len, shown.splitlines())) <= width


def test_a_sample_without_a_long_copied_run_shows_no_location() -> None:
    few = panel(Sample(5, "a", " one two new", {"memorization": copying(" one two new", "one two", 2)}))
    assert "longest run 2 words (7 characters)" in few
    assert "⟦" not in few
    assert "training text," not in few
    assert "copied" not in panel(Sample(0, "a", " one two new"))
