"""The baselines, as they are printed while a model trains."""

from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console

from minigpt.baselines.baselines import Baseline
from minigpt.cli.render.training_display import TrainingDisplay
from minigpt.runs.events import Started
from minigpt.training.events import Evaluation, Step

BASELINES = [
    Baseline(name=name, bits_per_byte=bits, train_bytes=train, validation_bytes=9, whole_train_bytes=whole)
    for name, bits, train, whole in (("bytes", 4.5, 9, 9), ("gzip", 3.0, 0, 0), ("xz of old", 2.0, 9, 99))
]


STARTED = Started(Path("fox"), 0, "cpu", 100, 800, ())


def printed(*bits: float, log: list[dict[str, Any]] | None = None) -> list[str]:
    """The lines printed for the evaluations with these bits per byte, after those for a log."""
    out = Console(file=StringIO(), width=200)
    display = TrainingDisplay(replace(STARTED, baselines=tuple(BASELINES)), out)
    display.read_log(log or [])
    for number, figure in enumerate(bits):
        display.show(Evaluation(10 * number, figure, figure, 100, 1.0, best=False))
    return out.file.getvalue().splitlines()  # type: ignore[attr-defined]


def test_the_baselines_to_beat_are_printed_after_the_first_evaluation() -> None:
    first, to_beat, partial, second, third = printed(3.4, 2.9, 2.8)
    assert "step      0" in first
    assert "beats" not in first
    # Without bytes: the first evaluation, 3.4, is already below it.
    assert to_beat == "baselines to beat, in bits per byte of the held-out text: gzip 3.0000"
    assert partial.endswith("xz of old (trained on 9 B) 2.0000")
    assert second.endswith("now beats gzip")
    assert "beats" not in third


def test_a_baseline_beaten_before_a_resume_is_not_announced_again() -> None:
    evaluations = [{"step": 0, "bits_per_byte": 5.0}, {"step": 10, "bits_per_byte": 4.0}]
    to_beat, _, first, second = printed(4.1, 2.9, log=[{"step": 1, "loss": 1.0}, *evaluations])
    assert to_beat == "baselines to beat, in bits per byte of the held-out text: gzip 3.0000"
    assert "beats" not in first
    assert second.endswith("now beats gzip")


def step(number: int, loss: float = 2.0, *, rate: float = 800.0) -> Step:
    """One of 100 steps of 800 tokens."""
    return Step(number, number / 100, loss, 1e-3, 1.0, 800 * number, float(number), 1.0, rate)
