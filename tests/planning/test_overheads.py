"""The part of a budget in minutes that a run spends on steps, compared with a simulated run."""

import math

import pytest

from minigpt.config import TrainConfig
from minigpt.planning.overheads import Overheads
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


@pytest.mark.parametrize("minutes", [0.5, 3, 10])
@pytest.mark.parametrize("evaluation", [0.05, 0.6, 4.0])
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
