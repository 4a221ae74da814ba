"""Saved progress: its values, grouped by record."""

import json
from dataclasses import fields

from minigpt.training.progress import (
    BestResult,
    BudgetState,
    EvaluationState,
    Progress,
    Recovery,
    SampleState,
    SavedWith,
)

GROUPED = Progress(
    step=12,
    tokens=1152,
    seconds=4.5,
    best=BestResult(loss=2.5, step=9),
    evaluation=EvaluationState(
        step=12, seconds=4.25, duration=0.125, is_best=False, lowest_loss=2.75, without_improvement=1
    ),
    sample=SampleState(step=8, seconds=3.0),
    budget=BudgetState(start_seconds=0.25, closing_seconds=1.5, shortened_to=0.75, cooldown_step=10),
    recovery=Recovery(
        peak_learning_rate=0.01, learning_rate_factor=0.5, rollbacks=1, skipped_steps=3, consecutive_skips=2
    ),
    saved_with=SavedWith(optimizer="muon", corpus="f00d", micro_batch_size=4, loss_scaler={"scale": 2.0}),
)


def test_progress_survives_being_saved() -> None:
    saved = json.loads(json.dumps(GROUPED.to_dict()))
    assert saved["step"] == 12
    assert saved.keys() == {field.name for field in fields(Progress)}
    assert Progress.from_dict(saved) == GROUPED
