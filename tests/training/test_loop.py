"""Training on a tiny corpus: learning, reproducibility, accumulation, bit-for-bit resume, stops, saves."""

import errno
import itertools
import json
import math
import os
import pickle
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from builders import new_model, new_pair, new_run
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from minigpt.config import GPTConfig, TrainConfig
from minigpt.data.corpus import Corpus
from minigpt.errors import CheckpointError, ConfigError, TrainingError
from minigpt.evaluation.perplexity import EvaluationResult, evaluate
from minigpt.model.gpt import GPT
from minigpt.storage.checkpoint import load_checkpoint
from minigpt.storage.run import Run
from minigpt.storage.run_record import Result
from minigpt.training import clock
from minigpt.training.budget import planned_steps
from minigpt.training.clock import Control
from minigpt.training.evaluation import Evaluator
from minigpt.training.events import Evaluation, Event, Finished, Notice, Sample, Saved, Step
from minigpt.training.loop import train
from minigpt.training.loss import next_token_loss
from minigpt.training.spike_detection import RunDivergedError, SpikeDetector

TEXT = "the quick brown fox jumps over the lazy dog; " * 60
BPE_VOCAB_SIZE = 262


@pytest.fixture(scope="module")
def bpe_corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """The same text with a few BPE tokens beyond the bytes."""
    folder = tmp_path_factory.mktemp("bpe")
    (folder / "fox.txt").write_text(TEXT)
    return Corpus.build([folder / "fox.txt"], f"bpe:{BPE_VOCAB_SIZE}", cache=folder / "cache")


def settings(**changes: Any) -> TrainConfig:
    base = TrainConfig(
        steps=10, batch_size=6, micro_batch_size=4, warmup_steps=2, learning_rate=1e-2, eval_every=3, sample_every=4,
        eval_tokens=200, device="cpu",
    )  # fmt: skip
    return base.replace(**changes)


def figures(run: Run) -> list[dict[str, Any]]:
    """The log without the figures that depend on the clock."""
    clock = {"seconds", "tokens_per_second"}
    return [{key: value for key, value in record.items() if key not in clock} for record in run.read_log()]


def same_weights(a: GPT, b: GPT) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def until(events: Iterator[Event], kind: type, step: int) -> list[Event]:
    """The events up to the first of that kind at that step, where the loop is left as a user would."""
    taken = []
    for event in events:
        taken.append(event)
        if isinstance(event, kind) and event.step == step:  # type: ignore[attr-defined]
            events.close()  # type: ignore[attr-defined]
    return taken


def test_training_learns_the_text(corpus: Corpus) -> None:
    model = new_model()
    events = list(train(model, corpus, settings(steps=120, eval_every=None, sample_every=0)))
    evaluations = [event for event in events if isinstance(event, Evaluation)]
    assert evaluations[0].step == 0
    assert evaluations[0].validation_loss == pytest.approx(math.log(257), abs=0.1)
    assert [event.step for event in evaluations] == list(range(0, 121, 15))  # each costs two thirds of a step
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert finished.validation_loss is not None
    assert finished.validation_loss < 1.6
    # Every token here is one byte but end-of-text, which has no bytes.
    assert finished.bits_per_byte == pytest.approx(finished.validation_loss / math.log(2), rel=0.02)


def test_a_run_in_bfloat16_on_a_cpu_learns_and_is_validated_in_float32(corpus: Corpus) -> None:
    model = new_model()
    evaluations = [
        event for event in train(model, corpus, settings(steps=30, dtype="bfloat16")) if isinstance(event, Evaluation)
    ]
    exact, in_bfloat16 = (
        evaluate(model, corpus.validation, context=16, max_tokens=200, dtype=dtype).loss
        for dtype in (torch.float32, torch.bfloat16)
    )
    assert evaluations[-1].validation_loss == exact != in_bfloat16
    assert exact < evaluations[0].validation_loss - 0.3


def test_dtype_auto_is_float32_on_a_cpu_even_if_bfloat16_is_faster(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minigpt.device.multiplies_bfloat16_faster", lambda: True)
    models = []
    for dtype in ("auto", "float32", "bfloat16"):
        models.append(new_model(dropout=0.1))
        list(train(models[-1], corpus, settings(steps=3, dtype=dtype)))
    assert same_weights(models[0], models[1])
    assert not same_weights(models[0], models[2])


def test_events_come_as_often_as_configured(corpus: Corpus, tmp_path: Path) -> None:
    model = new_model(dropout=0.1)
    events = list(train(model, corpus, settings(save_every=5), new_run(tmp_path / "run", model, corpus.tokenizer)))
    steps = {kind: [e.step for e in events if isinstance(e, kind)] for kind in (Step, Evaluation, Sample, Finished)}
    assert steps[Step] == list(range(1, 11))
    assert steps[Evaluation] == [0, 3, 6, 9, 10]
    assert steps[Sample] == [4, 8, 10]
    assert steps[Finished] == [10]
    saved = {kind: {e.step for e in events if isinstance(e, Saved) and e.what == kind} for kind in ("best", "last")}
    assert saved["last"] == {0, 5, 10} | saved["best"]


def test_runs_with_equal_seeds_are_equal_and_with_different_seeds_are_not(corpus: Corpus) -> None:
    models = [new_model(dropout=0.1), new_model(dropout=0.1), new_model(dropout=0.1)]
    for model, seed in zip(models, (1, 1, 2), strict=True):
        list(train(model, corpus, settings(seed=seed)))
    assert same_weights(models[0], models[1])
    assert not same_weights(models[0], models[2])


@pytest.mark.parametrize("micro", [1, 4, 6, None])
def test_accumulated_micro_batches_equal_the_full_batch(bpe_corpus: Corpus, micro: int | None) -> None:
    whole, parts = new_model(vocab_size=BPE_VOCAB_SIZE), new_model(vocab_size=BPE_VOCAB_SIZE)
    list(train(whole, bpe_corpus, settings(micro_batch_size=6)))
    list(train(parts, bpe_corpus, settings(micro_batch_size=micro)))
    for a, b in zip(whole.parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-4)


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
@pytest.mark.parametrize(("schedule", "dtype"), [("cosine", "float32"), ("trapezoid", "bfloat16")])
@pytest.mark.parametrize(("kind", "step"), [(Step, 1), (Step, 6), (Evaluation, 6), (Saved, 3), (Sample, 4), (Step, 9)])
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(
    bpe_corpus: Corpus, tmp_path: Path, kind: type, step: int, schedule: str, dtype: str, optimizer: str
) -> None:
    config = settings(schedule=schedule, dtype=dtype, optimizer=optimizer)
    whole = new_model(dropout=0.1, vocab_size=BPE_VOCAB_SIZE)
    uninterrupted = new_run(tmp_path / "whole", whole, bpe_corpus.tokenizer)
    list(train(whole, bpe_corpus, config, uninterrupted))

    first = new_model(dropout=0.1, vocab_size=BPE_VOCAB_SIZE)
    run = new_run(tmp_path / "parts", first, bpe_corpus.tokenizer)
    until(train(first, bpe_corpus, config, run), kind, step)
    second = load_checkpoint(run.directory, "cpu").model  # what a fresh process has
    list(train(second, bpe_corpus, config, Run.open(run.directory), resume=True))

    assert same_weights(whole, second)
    assert figures(uninterrupted) == figures(run)
    states = [r.load_last() for r in (uninterrupted, run)]
    assert states[0] is not None
    assert states[1] is not None
    assert states[0].tensors.keys() == states[1].tensors.keys()
    assert all(torch.equal(states[0].tensors[name], states[1].tensors[name]) for name in states[0].tensors)


def test_a_run_resumed_with_a_longer_budget_evaluates_and_samples(corpus: Corpus, tmp_path: Path) -> None:
    model, run = new_pair(tmp_path / "run", dropout=0.1)
    short = settings(steps=20, eval_every=None, sample_every=None)
    list(train(model, corpus, short, run))
    again = load_checkpoint(run.directory, "cpu").model
    events = list(train(again, corpus, short.replace(steps=60), run, resume=True))
    # It continues from step 10, before the cool-down for 20 steps.
    assert [event.step for event in events if isinstance(event, Evaluation)] == [16, 24, 32, 40, 48, 56, 60]
    assert [event.step for event in events if isinstance(event, Sample)] == [12, 24, 36, 48, 60]


def test_a_run_resumed_with_a_longer_budget_equals_one_that_started_with_it_bit_for_bit(
    corpus: Corpus, tmp_path: Path
) -> None:
    whole = new_model(dropout=0.1)
    uninterrupted = new_run(tmp_path / "whole", whole, corpus.tokenizer)
    list(train(whole, corpus, settings(steps=20), uninterrupted))
    model, run = new_pair(tmp_path / "run", dropout=0.1)
    list(train(model, corpus, settings(steps=10), run))
    until(
        train(model, corpus, settings(steps=20), run, resume=True), Step, 8
    )  # stopped again, before the new cool-down
    again = load_checkpoint(run.directory, "cpu").model
    events = list(train(again, corpus, settings(steps=20), run, resume=True))
    assert same_weights(again, whole)
    assert figures(run) == figures(uninterrupted)
    assert [event.step for event in events if isinstance(event, Step)] == list(range(9, 21))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_run_that_continues_before_its_cool_down_replaces_no_open_file(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows does not replace one."""
    replace = os.replace

    def refuse_open(source: str, target: str, **folders: int) -> None:
        folder = Path(f"/proc/self/fd/{folders['dst_dir_fd']}") if "dst_dir_fd" in folders else Path()
        if (folder / target).resolve() in [path.resolve() for path in Path("/proc/self/fd").iterdir()]:
            raise PermissionError(errno.EACCES, "Permission denied")
        replace(source, target, **folders)

    monkeypatch.setattr(os, "replace", refuse_open)
    model, run = new_pair(tmp_path / "run")
    list(train(model, corpus, settings(steps=20, sample_every=0), run))
    events = list(train(model, corpus, settings(steps=60, sample_every=0), run, resume=True))
    notices = [event.text for event in events if isinstance(event, Notice)]
    assert not [text for text in notices if "could not be saved" in text]
    assert [record["step"] for record in run.read_log() if "loss" in record] == list(range(1, 61))


def test_a_run_that_continues_before_its_cool_down_keeps_its_best_weights_until_they_are_beaten(
    corpus: Corpus, tmp_path: Path
) -> None:
    model, run = new_pair(tmp_path / "run")
    finished = list(train(model, corpus, settings(steps=60, sample_every=0), run))[-1]
    assert isinstance(finished, Finished)
    longer = settings(steps=400, patience=0, sample_every=0)
    events = list(train(model, corpus, longer, run, resume=True))
    notices = [event.text for event in events if isinstance(event, Notice)]
    assert "from step 30 to 60, for a shorter budget; the run continues from step 30 and keeps" in notices[0]
    first_best = next(event for event in events if isinstance(event, Evaluation) and event.best)
    progress = run.last_progress()
    assert progress is not None
    assert first_best.validation_loss < progress["best"]["loss"] + 10
    between = [e for e in events if isinstance(e, Evaluation) and e.step < first_best.step]
    assert between  # the first evaluations at the high learning rate are worse than the best weights
    assert all(event.validation_loss >= first_best.validation_loss for event in between)


def test_a_missing_state_before_the_cool_down_is_reported(corpus: Corpus, tmp_path: Path) -> None:
    model, run = new_pair(tmp_path / "run", dropout=0.1)
    list(train(model, corpus, settings(), run))
    run.before_cooldown_path.unlink()
    events = list(train(new_model(dropout=0.1), corpus, settings(steps=12), run, resume=True))
    expected = [event.text for event in events if isinstance(event, Notice)]
    assert expected == [
        "the state from before the learning rate decayed is missing, so the run continues within the decay"
    ]
    assert [event.step for event in events if isinstance(event, Step)] == [11, 12]


@pytest.mark.parametrize("decay", [{"cooldown": 1}, {"schedule": "cosine"}])
def test_a_decay_over_the_whole_run_has_no_state_before_it(
    corpus: Corpus, tmp_path: Path, decay: dict[str, Any]
) -> None:
    model, run = new_pair(tmp_path / "run")
    list(train(model, corpus, settings(sample_every=0, **decay), run))
    assert not run.before_cooldown_path.exists()
    events = list(train(new_model(), corpus, settings(steps=20, sample_every=0, **decay), run, resume=True))
    assert not [event for event in events if isinstance(event, Notice)]
    assert [event.step for event in events if isinstance(event, Step)] == list(range(11, 21))


def test_a_run_resumed_with_more_minutes_evaluates(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = itertools.count(step=0.01)  # seconds that pass between two reads of the clock, on any machine
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    model, run = new_pair(tmp_path / "run", dropout=0.1)
    short = settings(steps=None, minutes=0.01, eval_every=None, sample_every=0)
    list(train(model, corpus, short, run))
    again = load_checkpoint(run.directory, "cpu").model
    events = list(train(again, corpus, short.replace(minutes=0.04), run, resume=True))
    assert len([event for event in events if isinstance(event, Evaluation)]) >= 4
    assert [record["step"] for record in run.read_log() if "loss" in record] == list(range(1, events[-1].step + 1))  # type: ignore[union-attr]


def test_a_run_that_stopped_early_stays_stopped_until_patience_allows_more(corpus: Corpus, tmp_path: Path) -> None:
    model, run = new_pair(tmp_path / "run")
    config = settings(
        steps=40, learning_rate=3.0, warmup_steps=40, eval_every=2, schedule="constant", patience=3, spike_threshold=0
    )
    stopped = list(train(model, corpus, config, run))[-1]
    again = load_checkpoint(run.directory, "cpu").model
    assert list(train(again, corpus, config, run, resume=True))[-1].step == stopped.step  # type: ignore[union-attr]
    again = load_checkpoint(run.directory, "cpu").model
    assert list(train(again, corpus, config.replace(patience=0), run, resume=True))[-1].step == 40  # type: ignore[union-attr]


def limit_memory(monkeypatch: pytest.MonkeyPatch, max_sequences: int) -> None:
    """A machine whose memory fits a micro-batch of so many sequences."""

    def loss(features: Tensor, *rest: Tensor, **options: Any) -> Tensor:
        if len(features) > max_sequences:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return next_token_loss(features, *rest, **options)

    monkeypatch.setattr("minigpt.training.loss.next_token_loss", loss)
    monkeypatch.setattr(torch, "compile", lambda function: function)


@pytest.mark.parametrize("compiled", ["off", "on"])  # compilation runs out of memory first, but has not failed
def test_running_out_of_memory_halves_the_micro_batch_and_changes_nothing_else(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: Any
) -> None:
    config = settings(micro_batch_size=None, compile=compiled)
    plain = new_model()
    list(train(plain, corpus, config.replace(compile="off")))
    limit_memory(monkeypatch, max_sequences=1)
    model, run = new_pair(tmp_path / "run")
    events = until(train(model, corpus, config, run), Step, 5)
    notices = [event.text for event in events if isinstance(event, Notice)]
    assert len(notices) == 2  # six sequences, three, one
    assert "out of memory on cpu with a micro-batch of 6 sequences: reduced it to 3" in notices[0]
    events = list(train(model, corpus, config, run, resume=True))
    assert not [event for event in events if isinstance(event, Notice) and "memory" in event.text]  # it remembers
    for a, b in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-4)


def test_running_out_of_memory_with_one_sequence_names_the_options(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that can still help."""
    limit_memory(monkeypatch, max_sequences=0)
    shorter = r"micro-batch of 1 x 16 tokens; give a shorter --context-length"
    with pytest.raises(TrainingError, match=rf"{shorter} or a smaller model;"):  # activations are recomputed by then
        list(train(new_model(dropout=0.1), corpus, settings()))
    with pytest.raises(TrainingError, match=rf"{shorter}, --checkpoint-activations on, or a smaller model;"):
        list(train(new_model(dropout=0.1), corpus, settings(checkpoint_activations="off")))


def test_checkpointed_activations_give_the_same_gradients_bit_for_bit(corpus: Corpus) -> None:
    models = [new_model(dropout=0.1), new_model(dropout=0.1)]
    list(train(models[0], corpus, settings()))
    list(train(models[1], corpus, settings(checkpoint_activations="on")))
    assert same_weights(*models)


def test_a_record_has_only_numbers_that_json_allows(corpus: Corpus, tmp_path: Path) -> None:
    run = new_run(tmp_path / "run", new_model(dropout=0.1), corpus.tokenizer)
    run.log({"step": 1, "loss": math.nan, "gradient_norm": math.inf})
    run.update(result=Result(validation_loss=math.nan))
    assert list(run.read_log()) == [{"step": 1, "loss": None, "gradient_norm": None}]
    assert Run.open(run.directory).record.result == Result(validation_loss=None)


def test_a_damaged_line_of_the_log_is_named(corpus: Corpus, tmp_path: Path) -> None:
    run = new_run(tmp_path / "run", new_model(dropout=0.1), corpus.tokenizer)
    run.log_path.write_text('{"step": 1}\n{"st\n{"step": 2}\n')
    with pytest.raises(CheckpointError, match=r"log.jsonl, line 2 is not JSON"):
        list(run.read_log())


def test_a_run_of_another_format_is_refused(corpus: Corpus, tmp_path: Path) -> None:
    run = new_run(tmp_path / "run", new_model(dropout=0.1), corpus.tokenizer)
    run.update(format=99)
    with pytest.raises(CheckpointError, match=r"another version of minigpt \(format 99, here 1\)"):
        Run.open(run.directory)


def test_the_folder_has_the_best_weights_and_the_model_ends_with_them(corpus: Corpus, tmp_path: Path) -> None:
    model, run = new_pair(tmp_path / "run")
    # A learning rate at which the model diverges after a good start.
    config = settings(
        steps=40, learning_rate=3.0, warmup_steps=40, eval_every=2, schedule="constant", patience=3, spike_threshold=0
    )
    events = list(train(model, corpus, config, run))
    evaluations = [event for event in events if isinstance(event, Evaluation)]
    best = min(evaluations, key=lambda event: event.validation_loss)
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert finished.reason == "early stop"
    assert finished.step == best.step + 3 * 2 < 40
    assert finished.best_step == best.step < finished.step
    assert same_weights(model, load_checkpoint(run.directory, "cpu").model)
    assert Run.open(run.directory).record.result.best_step == best.step
    last = run.load_last()
    assert last is not None
    assert last.progress["step"] == finished.step


@pytest.mark.parametrize(
    ("save_every", "eval_every", "what"),
    [
        (None, 9, r"after step 9 \(loss nan, .* resumed from step 0 with 0.5 of the learning rate"),
        (2, 3, r"after step 4 \(weights are NaN or infinite\); resumed from step 3"),
        (3, 4, r"after step 4 \(the validation loss is nan\); resumed from step 3"),
    ],
)
def test_nan_weights_are_never_saved_and_the_run_is_rolled_back(
    corpus: Corpus, tmp_path: Path, save_every: int | None, eval_every: int, what: str
) -> None:
    model, run = new_pair(tmp_path / "run", dropout=0.1)
    config = settings(steps=12, sample_every=0, save_every=save_every, eval_every=eval_every, schedule="constant")
    events = train(model, corpus, config, run)
    next(event for event in events if isinstance(event, Step) and event.step == 4)
    model.final_norm.weight.data.fill_(math.nan)
    rest = list(events)
    assert [event.text for event in rest if isinstance(event, Notice) and re.search(what, event.text)]
    assert isinstance(rest[-1], Finished)
    rates = [event.learning_rate for event in rest if isinstance(event, Step)]
    assert rates[-1] == pytest.approx(0.5 * 1e-2)
    state = run.load_last()
    assert state is not None
    assert all(tensor.isfinite().all() for tensor in state.tensors.values())
    best = load_checkpoint(run.directory, "cpu").model
    assert all(parameter.isfinite().all() for parameter in best.parameters())
    assert [record["step"] for record in run.read_log() if "loss" in record] == list(range(1, 13))


def test_a_run_that_diverges_repeatedly_stops_with_advice(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, run = new_pair(tmp_path / "run", dropout=0.1)
    list(train(model, corpus, settings(schedule="constant"), run))
    monkeypatch.setattr(
        "minigpt.training.loss.next_token_loss",
        lambda *rest, **options: next_token_loss(*rest, **options) * math.nan,
    )
    expected = r"after step 15 \(loss nan, .*\), also after 3 rollbacks .*; the state of step 10 is kept; lower .*"
    with pytest.raises(TrainingError, match=expected):
        list(train(model, corpus, settings(steps=50, schedule="constant"), run, resume=True))
    expected = r"after step 5 .*; nothing was saved yet; lower --learning-rate, now 0\.01, .*"
    with pytest.raises(TrainingError, match=expected):
        list(train(new_model(dropout=0.1), corpus, settings()))


def test_a_loss_spike_is_skipped_and_counted(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    config = settings(steps=200, sample_every=0, eval_every=1000, micro_batch_size=None)
    calls = iter(range(1000))
    spiking = {190: 200.0, 194: 200.0}  # factors

    def loss(*rest: Tensor, **options: Any) -> Tensor:
        return next_token_loss(*rest, **options) * spiking.get(next(calls), 1.0)

    monkeypatch.setattr("minigpt.training.loss.next_token_loss", loss)
    events = list(train(new_model(), corpus, config))
    assert [event.step for event in events if isinstance(event, Step) and event.skipped] == [191, 195]
    notices = [event.text for event in events if isinstance(event, Notice)]
    assert notices[1].startswith("skipped step 195: loss")
    assert notices[1].endswith("is far above the recent losses (2 skipped so far)")
    calls = iter(range(1000))
    events = list(train(new_model(), corpus, config.replace(spike_threshold=0)))
    assert not [event for event in events if isinstance(event, Step) and event.skipped]


@pytest.mark.parametrize("learning_rate", [10.0, 50.0])
def test_a_run_that_diverges_from_its_first_steps_on_is_rolled_back_and_ends_with_an_error(
    corpus: Corpus, tmp_path: Path, learning_rate: float
) -> None:
    model, run = new_pair(tmp_path / "run")
    config = settings(steps=60, learning_rate=learning_rate, optimizer="muon", patience=5, schedule="constant")
    notices: list[str] = []
    with pytest.raises(RunDivergedError, match=r"also after 3 rollbacks .* the best weights are those of step 0"):
        notices.extend(event.text for event in train(model, corpus, config, run) if isinstance(event, Notice))
    assert sum("training diverged after step" in text for text in notices) == 3
    assert Run.open(run.directory).record.result.reason == "diverged"
    assert same_weights(load_checkpoint(run.directory, "cpu").model, new_model())
    *_, finished = train(model, corpus, config.replace(learning_rate=0.008, patience=None), run, resume=True)
    assert isinstance(finished, Finished)
    assert finished.reason == "length"  # with the usual learning rate it learns, from the state that was kept
    assert finished.best_step > 0


def guess_among(tokens: int, init: Callable[..., None]) -> Callable[..., None]:
    """A detector's `__init__`, whose uniform guess is among so many tokens."""
    return lambda detector, threshold, _, device: init(detector, threshold, tokens, device)


@pytest.mark.parametrize(("uniform", "has_diverged"), [(250, True), (400, False)])
def test_a_run_that_ends_worse_than_a_uniform_guess_has_diverged_unless_it_has_learned_its_text(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uniform: int, has_diverged: bool
) -> None:
    """Only the held-out text may be of another kind. The training loss stays that of a guess among 257 tokens."""
    model, run = new_pair(tmp_path / "run")
    losses, measured = iter([5.6, 7.0, 8.0]), Evaluator.evaluate

    def worse(evaluator: Evaluator) -> EvaluationResult | None:
        result = measured(evaluator)
        return result and replace(result, loss=next(losses))

    monkeypatch.setattr(Evaluator, "evaluate", worse)
    monkeypatch.setattr(SpikeDetector, "__init__", guess_among(uniform, SpikeDetector.__init__))
    training = train(model, corpus, settings(steps=4, eval_every=2, learning_rate=1e-9), run)
    if has_diverged:
        with pytest.raises(
            RunDivergedError, match=r"validation loss rose to 8\.0000 nats .* never below that of step 0"
        ) as caught:
            list(training)
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    else:
        list(training)
    result = Run.open(run.directory).record.result
    assert result is not None
    assert (result.reason, result.best_step) == ("diverged" if has_diverged else "length", 0)


def test_a_run_that_no_longer_improves_cools_down_before_it_stops(corpus: Corpus, tmp_path: Path) -> None:
    config = settings(steps=2000, learning_rate=0.3, eval_every=5, patience=2, sample_every=0, optimizer="adamw")
    model, run = new_pair(tmp_path / "run")
    events = list(train(model, corpus, config, run))
    steps = [event for event in events if isinstance(event, Step)]
    cooling = next(
        event for event in events if isinstance(event, Notice) and "the learning rate starts to decay now" in event.text
    )
    assert cooling.step < 500
    peak = next(event.learning_rate for event in steps if event.step == cooling.step)
    after = [event.learning_rate for event in steps if event.step > cooling.step + 1]
    assert after == sorted(after, reverse=True)
    assert max(after) < peak
    last = events[-1]
    assert isinstance(last, Finished)
    assert last.step <= 2 * cooling.step + 1  # as long as the steps before it
    assert last.reason == "early stop"
    again = load_checkpoint(run.directory, "cpu").model
    events = train(again, corpus, config.replace(patience=0), run, resume=True)  # now the run uses its full budget
    assert next(event for event in events if isinstance(event, Step)).step == cooling.step + 1


def test_a_cool_down_that_starts_on_schedule_is_not_stopped_by_the_evaluations_before_it(corpus: Corpus) -> None:
    # No step changes a weight, so no evaluation improves; the fifth of them is at step 10, where the cool-down starts.
    config = settings(steps=20, learning_rate=1e-30, eval_every=2, patience=5, schedule="trapezoid", cooldown=0.5)
    last = list(train(new_model(), corpus, config))[-1]
    assert isinstance(last, Finished)
    assert (last.step, last.reason) == (20, "length")


def test_log_lines_have_the_documented_fields(corpus: Corpus, tmp_path: Path) -> None:
    model, run = new_pair(tmp_path / "run", dropout=0.1)
    list(train(model, corpus, settings(steps=3), run))
    lines = [json.loads(line) for line in run.log_path.read_text().splitlines()]
    training = next(line for line in lines if "loss" in line)
    assert training.keys() >= {"step", "loss", "learning_rate", "tokens", "seconds", "tokens_per_second"}
    evaluation = next(line for line in lines if "validation_loss" in line)
    assert evaluation.keys() >= {"step", "validation_loss", "bits_per_byte", "tokens", "seconds"}


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS])
def test_a_failed_save_is_reported_and_tried_again_and_the_last_state_is_kept(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    uninterrupted = new_model(dropout=0.1)
    complete = new_run(tmp_path / "uninterrupted", uninterrupted, corpus.tokenizer)
    list(train(uninterrupted, corpus, settings(steps=20), complete))

    model, run = new_pair(tmp_path / "run", dropout=0.1)
    events = train(model, corpus, settings(steps=20), run)
    until_seven = list(itertools.takewhile(lambda event: event.step < 7, events))
    assert any(isinstance(event, Saved) for event in until_seven)
    before = run.last_path.read_bytes()

    def failing(*_: object) -> None:
        raise OSError(error, os.strerror(error))

    with monkeypatch.context() as broken:
        broken.setattr("os.fsync", failing)
        notices = []
        for event in events:
            if isinstance(event, Notice):
                notices.append(event.text)
            if event.step >= 14:
                break
        assert len(notices) >= 2
        assert os.strerror(error).lower() in notices[0]
        assert "the state of step 6 is kept; the next save tries again" in notices[0]
        assert run.last_path.read_bytes() == before
    list(events)  # the disk has room again
    assert same_weights(model, uninterrupted)
    assert figures(run) == figures(complete)


def test_a_disk_that_stays_full_is_an_error_at_the_end(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, run = new_pair(tmp_path / "run", dropout=0.1)
    events = train(model, corpus, settings(), run)
    next(event for event in events if isinstance(event, Saved) and event.what == "last" and event.step == 3)
    before = run.last_path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    rest: list[Event] = []
    with pytest.raises(CheckpointError, match=r"could not be written \(no space left on device\)"):
        rest.extend(events)
    assert isinstance(rest[-1], Finished)  # the result is reported first
    assert run.last_path.read_bytes() == before


def test_a_run_is_not_resumed_from_before_its_cool_down_if_that_state_cannot_be_saved(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise CheckpointError("no space left on device")

    model, run = new_pair(tmp_path / "run")
    list(train(model, corpus, settings(), run))
    before, lines = run.last_path.read_bytes(), run.log_path.read_bytes()
    longer = settings(steps=20)
    with monkeypatch.context() as broken:
        broken.setattr(Run, "save_last", full)
        with pytest.raises(CheckpointError, match="no space left on device"):
            list(train(model, corpus, longer, run, resume=True))
    assert (run.last_path.read_bytes(), run.log_path.read_bytes()) == (before, lines)
    events = list(train(new_model(), corpus, longer, run, resume=True))
    assert [event.step for event in events if isinstance(event, Step)] == list(range(6, 21))
    assert [line["step"] for line in run.read_log() if "loss" in line] == list(range(1, 21))


def test_a_control_requests_a_save_and_a_stop(corpus: Corpus, tmp_path: Path) -> None:
    model, run = new_pair(tmp_path / "run", dropout=0.1)
    control = Control()
    steps = []
    for event in train(model, corpus, settings(steps=100, eval_every=1000), run, control=control):
        if isinstance(event, Step):
            steps.append(event.step)
            control.save = event.step == 5
            control.stop = event.step == 8
        if isinstance(event, Saved) and event.what == "last" and event.step:
            assert event.step in (5, 8)
    assert steps[-1] == 8
    progress = run.last_progress()
    assert progress is not None
    assert progress["step"] == 8


def test_a_run_in_use_is_refused_and_available_afterwards(corpus: Corpus, tmp_path: Path) -> None:
    model, run = new_pair(tmp_path / "run", dropout=0.1)
    events = train(model, corpus, settings(), run)
    next(events)
    with pytest.raises(CheckpointError, match="being trained"):
        train(new_model(dropout=0.1), corpus, settings(), Run.open(run.directory), resume=True)
    list(events)
    list(train(new_model(dropout=0.1), corpus, settings(steps=12), Run.open(run.directory), resume=True))


def test_a_budget_in_minutes_limits_the_run(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()  # a clock that other programs do not slow down
    monkeypatch.setattr("minigpt.training.clock.time", SimpleNamespace(perf_counter=lambda: 0.005 * next(ticks)))
    events = list(
        train(new_model(dropout=0.1), corpus, settings(steps=None, minutes=0.02, eval_every=None, sample_every=0))
    )
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert finished.reason == "length"
    steps = [event for event in events if isinstance(event, Step)]
    assert steps[-2].progress < steps[-1].progress <= 1
    assert 2 * steps[-1].progress - steps[-2].progress > 1  # there is no time for another step
    assert steps[-2].seconds < 1.2  # time is left for the final evaluation
    assert steps[-1].learning_rate < 0.2 * 1e-2  # the schedule has reached its end


def test_elapsed_seconds_shorten_the_run_but_not_its_warmup(corpus: Corpus) -> None:
    config = settings(steps=None, minutes=0.05, warmup_steps=None, eval_every=None, sample_every=0)
    steps = [event for event in train(new_model(dropout=0.1), corpus, config, elapsed=2.0) if isinstance(event, Step)]
    assert steps[0].seconds > 2.0
    assert steps[0].learning_rate < 0.5 * 1e-2
    assert steps[-2].seconds < 3.0


def test_epochs_are_counted_in_windows(corpus: Corpus) -> None:
    events = list(train(new_model(dropout=0.1), corpus, settings(steps=None, epochs=0.5, sample_every=0)))
    assert events[-1].step == round(0.5 * (len(corpus.train) // 16) / 6)  # type: ignore[union-attr]


def test_without_a_run_the_last_weights_are_measured_and_named(corpus: Corpus) -> None:
    diverging = settings(steps=5, eval_every=5, learning_rate=0.5, schedule="constant", spike_threshold=0)
    *events, finished = train(new_model(), corpus, diverging)
    first, last = (event.validation_loss for event in events if isinstance(event, Evaluation))
    assert isinstance(finished, Finished)
    assert first < last
    assert (finished.best_step, finished.validation_loss) == (5, pytest.approx(last, abs=0.1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_state_in_another_dtype_is_refused(corpus: Corpus, tmp_path: Path, dtype: torch.dtype) -> None:
    """C code reads the states of optimizers as float32."""
    model, run = new_pair(tmp_path / "run")
    list(train(model, corpus, settings(steps=2, schedule="constant"), run))
    with safe_open(run.last_path, "pt") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    metadata = {key: value for key, value in metadata.items() if "crc" not in key}
    name = next(name for name in tensors if name.startswith("optimizer."))
    tensors[name] = tensors[name].to(dtype)
    save_file(tensors, run.last_path, metadata)
    with pytest.raises(CheckpointError, match=rf"its tensor '{name}' is {dtype} of shape .*, not float32 of shape"):
        train(model, corpus, settings(steps=4, schedule="constant"), run, resume=True)


def test_without_validation_text_the_latest_weights_are_saved(tmp_path: Path) -> None:
    (tmp_path / "tiny.txt").write_text("ab")
    tiny = Corpus.build([tmp_path / "tiny.txt"], "bytes", cache=tmp_path / "cache", validation_fraction=0)
    model = new_model(dropout=0.1)
    run = new_run(tmp_path / "run", model, tiny.tokenizer)
    events = list(train(model, tiny, settings(steps=4), run))
    assert not any(isinstance(event, Evaluation) for event in events)
    assert same_weights(model, load_checkpoint(run.directory, "cpu").model)
    assert events[-1].validation_loss is None  # type: ignore[union-attr]


def test_a_failing_compiler_is_reported_and_training_continues(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(function: Any) -> Any:
        def call(*_: object) -> None:
            raise RuntimeError("no C++ compiler here\nand many more lines")

        return call

    monkeypatch.setattr(torch, "compile", broken)
    with_fallback, plain = new_model(dropout=0.1), new_model(dropout=0.1)
    events = list(train(with_fallback, corpus, settings(compile="on")))
    notices = [event.text for event in events if isinstance(event, Notice)]
    assert notices == ["torch.compile failed (no C++ compiler here); training continues without it"]
    list(train(plain, corpus, settings(compile="off")))
    assert same_weights(with_fallback, plain)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": None}, "a run needs a length"),
        ({"context_length": 17}, r"context_length \(17\) must be at most the model's n_positions \(16\)"),
    ],
)
def test_settings_that_do_not_fit_are_refused(corpus: Corpus, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        list(train(new_model(dropout=0.1), corpus, settings(**changes)))


def test_a_tokenizer_larger_than_the_vocabulary_is_refused(corpus: Corpus) -> None:
    model = GPT(GPTConfig(vocab_size=100, n_positions=16, n_embd=16, n_layer=1, n_head=2))
    with pytest.raises(ConfigError, match="257 tokens; the model's vocabulary has only 100"):
        train(model, corpus, settings())


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # of torch.compile itself
@pytest.mark.parametrize(
    ("dtype", "compiled"),
    [("float32", "off"), pytest.param("bfloat16", "on", marks=pytest.mark.compiles), ("float16", "off")],
)
def test_training_learns_on_cuda(corpus: Corpus, dtype: str, compiled: str) -> None:
    size = 6 if compiled == "on" else 4  # of the batch: a single shape to compile
    config = settings(steps=60, device="cuda", dtype=dtype, compile=compiled, sample_every=0, micro_batch_size=size)
    events = list(train(new_model(), corpus, config))
    notices = [event.text for event in events if isinstance(event, Notice)]
    assert not notices or (dtype == "float16" and all("inf" in text for text in notices))  # its first scales overflow
    assert events[-1].validation_loss < 2.8  # type: ignore[union-attr,operator]


def test_a_run_resumed_on_another_text_forgets_its_best_loss(corpus: Corpus, tmp_path: Path) -> None:
    model, run = new_pair(tmp_path / "run")
    list(train(model, corpus, settings(steps=60), run))
    (tmp_path / "bear.txt").write_text("a bear and nine jugs of vex were quickly packed in his box! " * 60)
    other = Corpus.build([tmp_path / "bear.txt"], corpus.tokenizer, cache=tmp_path / "cache")
    events = list(train(model, other, settings(steps=90, schedule="constant"), run, resume=True))
    first = next(event for event in events if isinstance(event, Evaluation))
    assert first.best  # however much worse than the loss on the first text
    assert isinstance(events[-1], Finished)
    assert events[-1].best_step > 30


@pytest.mark.parametrize("changes", [{"context_length": 4}, {"context_length": 8}, {"eval_tokens": 40}, {}])
def test_a_run_resumed_with_other_evaluations_forgets_its_best_loss(
    corpus: Corpus, tmp_path: Path, changes: dict[str, Any]
) -> None:
    model, run = new_pair(tmp_path / "run")
    list(train(model, corpus, settings(steps=30, schedule="constant", context_length=16), run))
    config = settings(steps=60, schedule="constant", context_length=16).replace(**changes)
    events = list(train(model, corpus, config, run, resume=True))
    first = next(event for event in events if isinstance(event, Evaluation))
    assert (first.step == 30) == bool(changes)  # at once, because there is no comparable loss
    assert first.best or not changes


@pytest.mark.parametrize("changes", [{"batch_size": 12}, {"batch_size": 3}, {"context_length": 8}])
def test_a_run_in_epochs_that_changes_its_batch_reads_the_text_as_often(
    corpus: Corpus, tmp_path: Path, changes: dict[str, int]
) -> None:
    config = settings(steps=None, epochs=2, context_length=16, schedule="constant")
    windows = planned_steps(config, len(corpus.train))
    assert windows is not None
    model, run = new_pair(tmp_path / "run")
    for event in (events := train(model, corpus, config, run)):
        if isinstance(event, Step) and event.step == windows // 2:
            events.close()
            break
    resumed = list(train(model, corpus, config.replace(**changes), run, resume=True))
    last = [event for event in resumed if isinstance(event, Step)][-1]
    assert last.tokens == pytest.approx(windows * 6 * 16, abs=12 * 16)
    assert last.step != windows
