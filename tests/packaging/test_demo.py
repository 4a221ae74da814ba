"""`make demo`: which samples of a run are shown, and the bars."""

import runpy
from pathlib import Path

from rich.console import Console

from minigpt.runs.events import Started
from minigpt.storage.run_record import BaselineRecord
from minigpt.training.events import Evaluation, Finished, Sample, Step

DEMO = runpy.run_path(str(Path(__file__).parents[2] / "demo" / "demo.py"))


def step(number: int, seconds: float) -> Step:
    return Step(
        step=number, progress=0.1, loss=1.0, learning_rate=0.1, gradient_norm=1.0, tokens=1, seconds=seconds,
        seconds_left=7.0, tokens_per_second=1000.0,
    )  # fmt: skip


def test_the_first_sample_after_a_while_is_shown_and_bars_are_ordered() -> None:
    out = Console(width=80, record=True, file=None, force_terminal=False)
    screen = DEMO["Screen"](out, "a new model reads a book")
    baselines = tuple(BaselineRecord(name=name, bits_per_byte=bits, train_bytes=1, validation_bytes=1) for name, bits in
                      (("gzip", 3.0), ("words", 2.5), ("5-gram", 2.0)))  # fmt: skip
    started = Started(
        directory=Path("checkpoints/book"),
        step=0,
        device="cpu",
        total_steps=None,
        tokens_per_step=1,
        baselines=baselines,
    )
    finished = Finished(
        step=3, reason="length", best_step=3, validation_loss=1.0, bits_per_byte=1.5, validation_tokens=9, seconds=60.0
    )
    events = [
        started,
        Evaluation(step=0, validation_loss=9.0, bits_per_byte=4.0, tokens=0, seconds=1.0, best=True),
        step(1, 5.0), Sample(step=1, prompt="p", text="too early"),
        step(2, 25.0), Sample(step=2, prompt="p", text="shown"),
        step(3, 45.0), Sample(step=3, prompt="p", text="too late"),
        finished,
    ]  # fmt: skip
    assert DEMO["watch"](events, screen) == finished
    assert screen.texts == {"after 25 seconds": "shown"}
    assert screen.bars == {"gzip": 3.0, "5-gram": 2.0, "this model": 1.5}
    out.print(screen)
    shown = out.export_text()
    assert shown.index("gzip") < shown.index("5-gram") < shown.index("this model")
    assert "1.50 bits per byte" in shown
