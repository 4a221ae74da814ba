"""The part of a budget in minutes that a run spends on steps, compared with a simulated run."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from minigpt.autoplan.overheads import Overheads
from minigpt.config import GPTConfig, TrainConfig
from minigpt.data.corpus import Corpus
from minigpt.training.budget import Budget
from minigpt.training.progress import Progress

STEP = 0.05  # seconds


def simulated_steps(config: TrainConfig, overheads: Overheads) -> int:
    """The steps of a run in which everything takes exactly as long as `overheads` says, by the rules of `Budget`."""
    budget, progress = Budget(config, None), Progress.start(overheads.start, 1e-3)
    index = overheads.index
    while True:
        if budget.evaluation_is_due(progress):
            started = progress.seconds
            progress.seconds += overheads.evaluation
            progress.record_evaluation(1.0, is_best=True, started=started)
            progress.reserve_closing_time(overheads.final)
            progress.seconds += overheads.saving
        if budget.sample_is_due(progress):
            progress.seconds += overheads.sample + index
            index = 0.0
            progress.record_sample()
        if budget.is_spent(progress):
            return progress.step
        progress.seconds += STEP
        progress.count_step(1024)


@pytest.mark.parametrize("minutes", [0.5, 10])
@pytest.mark.parametrize("evaluation", [0.05, 4.0])
@pytest.mark.parametrize("given", [{}, {"eval_every": 50}, {"sample_every": 20}, {"sample_every": 0}])
def test_the_steps_of_a_simulated_run_are_within_5_percent(
    minutes: float, evaluation: float, given: dict[str, int]
) -> None:
    config = TrainConfig(minutes=minutes, **given)
    overheads = Overheads(start=4.0, evaluation=evaluation, saving=0.1, sample=0.2, index=0.5, final=1.5)
    expected = overheads.training_seconds(config, STEP) / STEP
    assert simulated_steps(config, overheads) == pytest.approx(expected, rel=0.05)
    assert expected < 60 * minutes / STEP


def test_overheads_that_take_the_whole_budget_leave_nothing() -> None:
    overheads = Overheads(start=40.0, evaluation=1.0, saving=0.1, sample=0.2, index=0.5, final=1.5)
    assert overheads.training_seconds(TrainConfig(minutes=0.5), STEP) == 0
    assert math.isfinite(overheads.training_seconds(TrainConfig(minutes=1e9), STEP))


@pytest.mark.parametrize(
    ("train_bytes", "minutes", "seconds"),
    [(400_000, 1, 0.1), (240_000_000, 1, 0.6), (240_000_000, 100, 25), (240_000_000, 0.1, 0.25)],
)
def test_of_a_large_text_only_the_part_that_the_run_indexes_counts(
    tmp_path: Path, train_bytes: int, minutes: float, seconds: float
) -> None:
    (tmp_path / "text.txt").write_text("a few words to learn from\n" * 100)
    corpus = Corpus.build(tmp_path / "text.txt", "bytes", cache=tmp_path / "cache")
    corpus = replace(corpus, train_bytes=train_bytes)
    config = TrainConfig(minutes=minutes, context_length=64, batch_size=4)
    overheads = Overheads.measured(GPTConfig(vocab_size=257), config, corpus, "cuda", step=STEP, planning=0.0)
    assert overheads.index == pytest.approx(seconds)


def test_a_run_without_samples_indexes_nothing() -> None:
    config = TrainConfig(minutes=1, sample_every=0)
    slow, fast = (
        Overheads(start=4.0, evaluation=0.6, saving=0.1, sample=0.2, index=index, final=1.5) for index in (20.0, 0.0)
    )
    assert slow.training_seconds(config, STEP) == fast.training_seconds(config, STEP)
