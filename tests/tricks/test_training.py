"""Training on noise: accumulated, and resumed bit for bit."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import new_model, new_run

from minigpt.config import TrainConfig
from minigpt.data.corpus import Corpus
from minigpt.model.gpt import GPT
from minigpt.storage.checkpoint import load_checkpoint
from minigpt.storage.run import Run
from minigpt.training.events import Evaluation, Event, Saved, Step
from minigpt.training.loop import train

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


@pytest.mark.parametrize("micro", [1, 4])
def test_accumulated_micro_batches_equal_the_full_batch(bpe_corpus: Corpus, micro: int | None) -> None:
    whole, parts = new_model(vocab_size=BPE_VOCAB_SIZE), new_model(vocab_size=BPE_VOCAB_SIZE)
    list(train(whole, bpe_corpus, settings(micro_batch_size=6, token_noise=0.2, bpe_dropout=0.2)))
    list(train(parts, bpe_corpus, settings(micro_batch_size=micro, token_noise=0.2, bpe_dropout=0.2)))
    for a, b in zip(whole.parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-4)


@pytest.mark.parametrize("optimizer", ["muon"])
@pytest.mark.parametrize(("schedule", "dtype"), [("cosine", "float32"), ("trapezoid", "bfloat16")])
@pytest.mark.parametrize(("kind", "step"), [(Step, 6), (Saved, 3)])
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(
    bpe_corpus: Corpus, tmp_path: Path, kind: type, step: int, schedule: str, dtype: str, optimizer: str
) -> None:
    config = settings(schedule=schedule, dtype=dtype, optimizer=optimizer, token_noise=0.1, bpe_dropout=0.2)
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


@pytest.mark.parametrize("name", ["token_noise", "bpe_dropout"])
def test_noise_changes_training_and_no_evaluation(bpe_corpus: Corpus, name: str) -> None:
    evaluations, losses = [], []
    for share in (0.0, 0.5):
        model = new_model(vocab_size=BPE_VOCAB_SIZE)
        events = list(train(model, bpe_corpus, settings(steps=1).replace(**{name: share})))
        evaluations.append(next(e.validation_loss for e in events if isinstance(e, Evaluation)))
        losses.append(next(e.loss for e in events if isinstance(e, Step)))
    assert evaluations[0] == evaluations[1]  # before the first step
    assert losses[0] != losses[1]
