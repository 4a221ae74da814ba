"""The time left in a budget, and the end of a run that cooled down early."""

import math

import pytest

from minigpt.config import TrainConfig
from minigpt.training.budget import Budget
from minigpt.training.progress import BudgetState, EvaluationState, Progress, SampleState


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


def test_epochs_count_the_tokens_of_steps_with_another_batch() -> None:
    budget = Budget(TrainConfig(epochs=4, context_length=10, batch_size=32), 50)  # 16,000 tokens
    assert (budget.progress_fraction(Progress()), budget.last_step(Progress())) == (0, 50)
    halfway = Progress(step=50, tokens=8_000)  # in batches of 16
    assert (budget.progress_fraction(halfway), budget.last_step(halfway)) == (0.5, 75)
    assert not budget.is_spent(halfway)
    assert budget.is_spent(Progress(step=75, tokens=16_000))


@pytest.mark.parametrize(("seconds", "is_due"), [(541.0, False), (560.0, False), (565.0, True), (569.0, False)])
def test_shortly_before_the_last_evaluation_there_is_no_other(seconds: float, is_due: bool) -> None:
    """A run of 600 s needs 12 s after its last step; an evaluation, of 1.3 s, may come every 39 s of training."""
    progress = Progress(
        step=2698,
        seconds=seconds,
        evaluation=EvaluationState(step=2500, seconds=523.0, duration=1.3),
        budget=BudgetState(start_seconds=11.0, closing_seconds=12.0),
    )
    assert Budget(TrainConfig(minutes=10), None).evaluation_is_due(progress) == is_due
    at_the_end = Progress(step=2742, seconds=588.0, evaluation=progress.evaluation, budget=progress.budget)
    assert Budget(TrainConfig(minutes=10), None).evaluation_is_due(at_the_end)


def test_weights_and_texts_without_an_evaluation_are_evaluated_at_once() -> None:
    evaluated = EvaluationState(step=50, seconds=60.0, duration=1.0)
    for config, total_steps in ((TrainConfig(minutes=3), None), (TrainConfig(steps=100), 100)):
        budget = Budget(config, total_steps)
        progress = Progress(step=50, seconds=60.0, evaluation=evaluated)
        assert not budget.evaluation_is_due(progress)
        progress.forget_losses()
        assert budget.evaluation_is_due(progress)


def test_a_cool_down_that_started_early_ends_the_run_early() -> None:
    budget = Budget(TrainConfig(minutes=3), None)
    assert budget.seconds_left(Progress(seconds=60.0, budget=BudgetState(shortened_to=0.5))) == pytest.approx(30.0)


@pytest.mark.parametrize("config", [TrainConfig(steps=7), TrainConfig(steps=7, sample_every=3), TrainConfig(minutes=1)])
def test_a_run_ends_with_a_sample(config: TrainConfig) -> None:
    budget = Budget(config, config.steps)
    end = Progress(step=7, seconds=60.0, sample=SampleState(step=6, seconds=59.0))
    assert budget.sample_is_due(end)
    end.record_sample()
    assert not budget.sample_is_due(end)
    assert not Budget(config.replace(sample_every=0), config.steps).sample_is_due(Progress(step=7, seconds=60.0))
