"""The time left in a budget, and the end of a run that cooled down early."""

import math
from itertools import pairwise

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


def evaluations(config: TrainConfig, total_steps: int | None, evaluation: float, step: float) -> list[int]:
    """The steps at which a run evaluates whose evaluations and steps take so many seconds, and the last step."""
    budget, progress, found = Budget(config, total_steps), Progress(seconds=9.0), []
    while True:
        if budget.evaluation_is_due(progress):
            found.append(progress.step)
            started = progress.seconds
            progress.seconds += evaluation
            progress.record_evaluation(1.0, is_best=True, started=started)
            progress.reserve_closing_time(evaluation)
        if budget.is_spent(progress):
            return found
        progress.count_step(1024)
        progress.seconds += step


@pytest.mark.parametrize("minutes", [1, 2, 5, 60])
@pytest.mark.parametrize(("evaluation", "step"), [(0.01, 0.05), (0.5, 0.5), (0.6, 2.0), (1.0, 0.5)])
def test_a_run_of_a_minute_or_more_has_at_least_six_evaluations_that_take_a_fifth_at_most(
    minutes: float, evaluation: float, step: float
) -> None:
    found = evaluations(TrainConfig(minutes=minutes), None, evaluation, step)
    assert 7 <= len(found) <= 22  # that of the untrained model too
    assert len(found) * evaluation <= 0.2 * found[-1] * step  # of the time of the steps
    if evaluation < 1 / 600 * 60 * minutes:
        assert len(found) >= 17  # there is time for as many as usual


def test_after_an_evaluation_that_takes_long_training_takes_five_times_as_long() -> None:
    found = evaluations(TrainConfig(minutes=2), None, 8.0, 0.5)
    assert len(found) * 8.0 < 60
    assert all(later - before >= 5 * 8.0 / 0.5 for before, later in pairwise(found[:-1]))


@pytest.mark.parametrize(
    ("eval_tokens", "steps", "expected"),
    [
        (1024, 12, [0, 2, 4, 6, 8, 10, 12]),
        (1024, 100, list(range(0, 101, 10))),
        (1024, 400, list(range(0, 401, 20))),  # a third of a step each
        (4096, 400, [*range(0, 400, 40), 400]),
        (100_000, 400, [0, 163, 326, 400]),  # 33 steps each
    ],
)
@pytest.mark.parametrize("seconds", [(0.1, 0.1), (40.0, 0.1)])
def test_a_run_in_steps_evaluates_by_what_its_tokens_cost_and_not_by_the_clock(
    eval_tokens: int, steps: int, expected: list[int], seconds: tuple[float, float]
) -> None:
    config = TrainConfig(steps=steps, batch_size=16, context_length=64, eval_tokens=eval_tokens)
    assert evaluations(config, steps, *seconds) == expected
    every = config.replace(eval_every=5)
    assert evaluations(every, steps, *seconds) == sorted({*range(0, steps + 1, 5), steps})


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
