"""Which weights are the best of a run whose evaluations read only a part of the held-out text."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import new_pair

from minigpt.config import TrainConfig
from minigpt.data.corpus import Corpus
from minigpt.evaluation.perplexity import EvaluationResult
from minigpt.model.gpt import GPT
from minigpt.storage.checkpoint import load_checkpoint
from minigpt.storage.run import Run
from minigpt.training.evaluation import Evaluator
from minigpt.training.events import Evaluation, Finished
from minigpt.training.loop import train

CONFIG = TrainConfig(
    steps=6, batch_size=6, context_length=16, learning_rate=1e-2, eval_every=3, eval_tokens=64, sample_every=0,
    schedule="constant", device="cpu",
)  # fmt: skip


def weights_of(model: GPT) -> list[torch.Tensor]:
    return [value.clone() for value in model.state_dict().values()]


def are_equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


class Measurements:
    """Replaces the losses of a run: those of its evaluations, and those at its end of the best and the last weights."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, losses: list[float], finally_: dict[str, float]) -> None:
        self.weights: list[list[torch.Tensor]] = []  # at each evaluation
        self.at_the_end: list[str] = []  # what was measured
        self._losses, self._finally = iter(losses), finally_
        self._evaluate, self._evaluate_finally = Evaluator.evaluate, Evaluator.evaluate_finally
        monkeypatch.setattr(Evaluator, "evaluate", lambda evaluator: self.evaluate(evaluator))
        monkeypatch.setattr(Evaluator, "evaluate_finally", lambda evaluator: self.evaluate_finally(evaluator))

    def evaluate(self, evaluator: Evaluator) -> EvaluationResult:
        result = self._evaluate(evaluator)
        assert result is not None
        assert result.tokens == 64
        self.weights.append(weights_of(evaluator.model))
        return replace(result, loss=next(self._losses))

    def evaluate_finally(self, evaluator: Evaluator) -> EvaluationResult:
        result = self._evaluate_finally(evaluator)
        assert result is not None
        which = "last" if are_equal(weights_of(evaluator.model), self.weights[-1]) else "best"
        self.at_the_end.append(which)
        return replace(result, loss=self._finally[which])


NOISE = math.sqrt(1 / 64 - 1 / 267)  # of the 268 tokens of the held-out text


@pytest.mark.parametrize(
    ("losses", "finally_", "measured", "best_step"),
    [
        ([5.0, 3.0, 2.0], {"last": 2.5}, ["last"], 6),  # the lowest
        ([5.0, 2.0, 2.0 + 1.9 * NOISE], {"last": 2.4, "best": 2.5}, ["last", "best"], 6),
        ([5.0, 2.0, 2.0 + 1.9 * NOISE], {"last": 2.6, "best": 2.5}, ["last", "best"], 3),
        ([5.0, 2.0, 2.0 + 1.9 * NOISE], {"last": 2.5, "best": 2.5}, ["last", "best"], 3),
        ([5.0, 2.0, 2.0 + 2.1 * NOISE], {"best": 2.5}, ["best"], 3),  # worse by more than the error
    ],
)
def test_weights_that_are_equal_but_for_noise_are_compared_on_all_of_the_text(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, losses: list[float], finally_: dict[str, float],
    measured: list[str], best_step: int,
) -> None:  # fmt: skip
    assert len(corpus.validation) == 268
    measurements = Measurements(monkeypatch, losses, finally_)
    model, run = new_pair(tmp_path / "run")
    *events, finished = train(model, corpus, CONFIG, run)
    assert isinstance(finished, Finished)
    assert measurements.at_the_end == measured
    assert (finished.best_step, finished.validation_loss) == (best_step, min(finally_.values()))
    chosen = measurements.weights[best_step // 3]
    assert are_equal(weights_of(model), chosen)
    assert are_equal(weights_of(load_checkpoint(run.directory, "cpu").model), chosen)
    assert Run.open(run.directory).best_figures() == (best_step, pytest.approx(losses[best_step // 3]))
    progress = Run.open(run.directory).last_progress()
    assert progress is not None
    assert (progress["step"], progress["best"]["step"]) == (6, best_step)
    assert [event.step for event in events if isinstance(event, Evaluation)] == [0, 3, 6]
    assert [line["validation_loss"] for line in run.read_log() if "validation_loss" in line] == losses


def test_a_run_whose_last_weights_were_chosen_continues_from_them(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = [5.0, 2.0, 2.05]
    Measurements(monkeypatch, losses, {"last": 2.4, "best": 2.5})
    model, run = new_pair(tmp_path / "run")
    list(train(model, corpus, CONFIG, run))
    monkeypatch.undo()
    whole, uninterrupted = new_pair(tmp_path / "whole")
    list(train(whole, corpus, CONFIG.replace(steps=9), uninterrupted))
    again, run = load_checkpoint(run.directory, "cpu").model, Run.open(run.directory)
    list(train(again, corpus, CONFIG.replace(steps=9), run, resume=True))
    states: list[Any] = [each.load_last() for each in (run, uninterrupted)]
    assert all(torch.equal(states[0].tensors[name], value) for name, value in states[1].tensors.items())


def test_a_run_in_minutes_measures_both_only_if_there_is_time(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, (seconds, measured) in enumerate(((0.15, ["best"]), (0.01, ["last", "best"]))):
        measurements = Measurements(monkeypatch, [5.0, 2.0, *[2.01] * 1000], {"last": 2.6, "best": 2.5})
        monkeypatch.setattr(Evaluator, "final_seconds", lambda _, seconds=seconds: seconds)
        model, run = new_pair(tmp_path / f"run{number}")
        config = CONFIG.replace(steps=None, minutes=0.03, patience=0)  # 1.8 s, of which a tenth is 0.18 s
        list(train(model, corpus, config, run))
        assert measurements.at_the_end == measured
        monkeypatch.undo()


def test_without_an_error_only_the_best_weights_are_measured(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evaluations that read all of the text cannot be wrong about it."""
    read: list[int | None] = []
    evaluate = Evaluator._evaluate

    def measured(self: Evaluator, max_tokens: int | None) -> EvaluationResult | None:
        read.append(max_tokens)
        result = evaluate(self, max_tokens)
        return result and replace(result, loss=[5.0, 2.0, 2.0001, 2.0][len(read) - 1])

    monkeypatch.setattr(Evaluator, "_evaluate", measured)
    model, run = new_pair(tmp_path / "run")
    *_, finished = train(model, corpus, CONFIG.replace(eval_tokens=1000), run)
    assert read == [1000, 1000, 1000, None]
    assert finished.best_step == 3  # type: ignore[union-attr]
