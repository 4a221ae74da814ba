"""Saved progress: grouped by record, and ungrouped as earlier versions wrote it."""

import json
from dataclasses import fields
from pathlib import Path

import pytest
from builders import new_model, new_run

from minigpt.config import TrainConfig
from minigpt.data.corpus import Corpus
from minigpt.storage.last_state import LastState
from minigpt.training.events import Event, Step
from minigpt.training.loop import train
from minigpt.training.progress import (
    BestResult,
    BudgetState,
    EvaluationState,
    Progress,
    Recovery,
    SampleState,
    SavedWith,
)

# As earlier versions wrote it into the metadata of `last/state.safetensors`.
UNGROUPED = (
    '{"step": 12, "tokens": 1152, "seconds": 4.5, "began_at": 0.25, "best_loss": 2.5, "best_step": 9, '
    '"lowest_loss": 2.75, "stale_evaluations": 1, "evaluated_best": false, "evaluated_step": 12, "evaluated_at": 4.25, '
    '"evaluation_seconds": 0.125, "sampled_step": 8, "sampled_at": 3.0, "closing_seconds": 1.5, "cut": 0.75, '
    '"cooling_since": 10, "learning_rate": 0.01, "rate_factor": 0.5, "times_back": 1, "left_out": 3, '
    '"left_out_running": 2, "micro_batch_size": 4, "optimizer": "muon", "corpus": "f00d", "scaler": {"scale": 2.0}}'
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


def test_progress_without_groups_is_read_into_its_records() -> None:
    assert Progress.from_dict(json.loads(UNGROUPED)) == GROUPED


def test_progress_survives_being_saved() -> None:
    saved = json.loads(json.dumps(GROUPED.to_dict()))
    assert saved["step"] == 12
    assert saved.keys() == {field.name for field in fields(Progress)}
    assert Progress.from_dict(saved) == GROUPED


def test_progress_of_an_early_state_without_some_values_has_their_defaults() -> None:
    progress = Progress.from_dict({"step": 3, "best_loss": 2.0})
    assert progress == Progress(step=3, best=BestResult(loss=2.0))


def ungrouped(state: LastState) -> LastState:
    """The state as earlier versions wrote it."""
    progress = Progress.from_dict(state.progress)
    evaluation, budget, recovery, saved_with = (
        progress.evaluation,
        progress.budget,
        progress.recovery,
        progress.saved_with,
    )
    values = {
        "step": progress.step, "tokens": progress.tokens, "seconds": progress.seconds,
        "began_at": budget.start_seconds, "best_loss": progress.best.loss, "best_step": progress.best.step,
        "lowest_loss": evaluation.lowest_loss, "stale_evaluations": evaluation.without_improvement,
        "evaluated_best": evaluation.is_best, "evaluated_step": evaluation.step, "evaluated_at": evaluation.seconds,
        "evaluation_seconds": evaluation.duration, "sampled_step": progress.sample.step,
        "sampled_at": progress.sample.seconds, "closing_seconds": budget.closing_seconds, "cut": budget.shortened_to,
        "cooling_since": budget.cooldown_step, "learning_rate": recovery.peak_learning_rate,
        "rate_factor": recovery.learning_rate_factor, "times_back": recovery.rollbacks,
        "left_out": recovery.skipped_steps, "left_out_running": recovery.consecutive_skips,
        "micro_batch_size": saved_with.micro_batch_size, "optimizer": saved_with.optimizer,
        "corpus": saved_with.corpus, "scaler": saved_with.loss_scaler,
    }  # fmt: skip
    tensors = {name.replace("spike_detector.", "guard."): tensor for name, tensor in state.tensors.items()}
    return LastState(tensors, values)


@pytest.mark.parametrize("stop", [7, 13])  # before and after the cool-down starts
def test_a_run_resumes_from_ungrouped_states_bit_for_bit(tmp_path: Path, stop: int) -> None:
    (tmp_path / "fox.txt").write_text("the quick brown fox jumps over the lazy dog; " * 60)
    corpus = Corpus.build([tmp_path / "fox.txt"], "bytes", cache=tmp_path / "cache")
    config = TrainConfig(steps=20, batch_size=6, warmup_steps=2, eval_every=3, sample_every=8, device="cpu")

    def steps(events: list[Event]) -> list[tuple[int, float, float]]:
        return [(event.step, event.loss, event.learning_rate) for event in events if isinstance(event, Step)]

    model = new_model(dropout=0.1)
    uninterrupted = steps(list(train(model, corpus, config, new_run(tmp_path / "whole", model, corpus.tokenizer))))
    model = new_model(dropout=0.1)
    run = new_run(tmp_path / "parts", model, corpus.tokenizer)
    events = train(model, corpus, config, run)
    next(event for event in events if isinstance(event, Step) and event.step == stop)
    events.close()
    for load, save in ((run.load_last, run.save_last), (run.load_before_cooldown, run.save_before_cooldown)):
        state = load()
        if state is not None:
            save(ungrouped(state))
    last = run.last_progress()
    assert last is not None
    assert "best_loss" in last
    resumed = steps(list(train(new_model(dropout=0.1), corpus, config, run, resume=True)))
    assert resumed == uninterrupted[stop:]
