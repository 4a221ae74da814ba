"""The parts of a training step: how an edge replaces them, and what no edge takes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from builders import new_model, new_train_step
from torch import Tensor

from minigpt.config import TrainConfig
from minigpt.data.corpus import Corpus
from minigpt.errors import ConfigError
from minigpt.training import step_parts
from minigpt.training.loop import train
from minigpt.training.loss import LossModel
from minigpt.training.step_parts import MicroBatch, StepParts


def config(**settings: Any) -> TrainConfig:
    return TrainConfig(steps=3, batch_size=4, context_length=8, device="cpu", sample_every=0, **settings)


class Doubled(LossModel):
    """Twice the loss, and a further argument."""

    def forward(self, inputs: Tensor, targets: Tensor, scored: Tensor | None = None, *more: Tensor) -> Tensor:
        return super().forward(inputs, targets, scored) * more[0]


def test_an_edge_replaces_the_batches_the_loss_and_the_optimizers(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = []

    @contextmanager
    def counted() -> Iterator[None]:
        yield
        steps.append("step")

    def change(parts: StepParts, config: TrainConfig, given: dict[str, Any]) -> None:
        plain, factor = parts.batches, given.pop("factor")

        class Batches:
            scores_all = True

            def read(self, step: int, rows: range, height: float) -> MicroBatch:
                batch = plain.read(step, rows, height)
                return MicroBatch(batch.inputs, batch.targets, more=(torch.tensor(factor),))

        parts.batches, parts.loss, parts.context = Batches(), Doubled(parts.model), counted
        parts.optimizers = [torch.optim.SGD(parts.model.parameters(), config.learning_rate)]

    (plain,) = new_train_step(new_model(), corpus, config()).step(0, 0.1)
    monkeypatch.setattr(step_parts, "provided", lambda seam: (change,) if seam == "step_parts" else ())
    events = list(train(new_model(), corpus, config(), factor=2.0))
    losses = [event.loss for event in events if type(event).__name__ == "Step"]
    assert losses[0] == pytest.approx(2 * plain.loss, rel=1e-5)
    assert steps == ["step"] * 3


def test_without_edges_a_step_is_plain_pytorch(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    (usual,) = new_train_step(new_model(), corpus, config()).step(0, 0.1)
    monkeypatch.setattr(step_parts, "provided", lambda _: ())
    step = new_train_step(new_model(), corpus, config())
    assert [type(optimizer).__name__ for optimizer in step.optimizers] == ["AdamW", "Muon"]
    (plain,) = step.step(0, 0.1)
    assert plain.loss == pytest.approx(usual.loss, rel=1e-5)
    assert plain.gradient_norm == pytest.approx(usual.gradient_norm, rel=1e-4)


def test_what_no_installed_edge_takes_is_refused_by_name(corpus: Corpus) -> None:
    with pytest.raises(ConfigError, match=r"^teachers cannot be given to train\(\): no installed edge uses it$"):
        train(new_model(), corpus, config(), teachers=new_model())
