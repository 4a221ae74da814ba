"""The time left in a budget, and the end of a run that cooled down early."""

import math

import pytest

from minigpt.config import TrainConfig
from minigpt.training.budget import Budget
from minigpt.training.progress import BudgetState, Progress


def test_the_time_left_of_a_run_in_steps_is_extrapolated_from_its_steps() -> None:
    budget = Budget(TrainConfig(steps=40), 40)
    assert budget.seconds_left(Progress(step=0, seconds=5.0, budget=BudgetState(start_seconds=5.0))) == math.inf
    # 10 steps in 20 s; the 5 s before the first of them do not count.
    assert budget.seconds_left(Progress(step=10, seconds=25.0, budget=BudgetState(start_seconds=5.0))) == pytest.approx(
        60.0
    )
    assert budget.seconds_left(Progress(step=40, seconds=85.0, budget=BudgetState(start_seconds=5.0))) == 0


def test_the_time_left_of_a_run_in_minutes_is_the_rest_of_its_budget() -> None:
    budget = Budget(TrainConfig(minutes=3), None)
    for elapsed in (12.0, 13.0, 100.0):  # however early: not extrapolated
        assert budget.seconds_left(Progress(seconds=elapsed, budget=BudgetState(start_seconds=12.0))) == pytest.approx(
            180 - elapsed
        )
        assert budget.seconds_left(
            Progress(seconds=elapsed, budget=BudgetState(start_seconds=12.0, closing_seconds=6.0))
        ) == pytest.approx(180 - elapsed)
    assert budget.seconds_left(
        Progress(seconds=176.0, budget=BudgetState(start_seconds=12.0, closing_seconds=6.0))
    ) == pytest.approx(6.0)


def test_a_cool_down_that_started_early_ends_the_run_early() -> None:
    budget = Budget(TrainConfig(minutes=3), None)
    assert budget.seconds_left(Progress(seconds=60.0, budget=BudgetState(shortened_to=0.5))) == pytest.approx(30.0)


def stops_after(losses: list[float], patience: int = 5) -> int | None:
    """The number of evaluations after which a run with these validation losses no longer improves; None if it does."""
    budget, progress = Budget(TrainConfig(minutes=3, patience=patience), None), Progress()
    for at, loss in enumerate(losses, start=1):
        progress.record_evaluation(loss, is_best=False, started=0.0)
        if budget.has_stopped_improving(Progress.from_dict(progress.to_dict())):
            return at
    return None


def test_a_run_stops_when_the_loss_rises_or_stays() -> None:
    assert stops_after([3.0, 2.0, 2.1, 2.2, 2.3, 2.4, 2.5]) == 7
    assert stops_after([3.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0]) == 7
    assert stops_after([3.0, 2.0, 2.1, 2.2], patience=0) is None


def test_a_run_goes_on_while_the_loss_falls_after_one_that_was_low_by_chance() -> None:
    # Of a run on documentation, which ended at half of its minutes and 2.13 bits per byte; another one reached 1.91.
    losses = [2.569, 1.711, 1.69, 1.544, 1.478, 1.527, 1.499, 1.503, 1.495, 1.488]
    assert stops_after(losses) is None
    assert stops_after([*losses, 1.485, 1.482, 1.47, 1.48]) is None  # a new lowest loss
    assert stops_after([*losses, 1.51]) == 11
