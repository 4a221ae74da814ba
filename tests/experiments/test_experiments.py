"""Functions given in Python: the loss, the optimizer, the schedule, the batches, and callbacks."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from builders import new_model
from torch import Tensor

import minigpt
from minigpt.config import TrainConfig
from minigpt.data.corpus import Corpus
from minigpt.errors import ConfigError
from minigpt.training.events import Event, Step
from minigpt.training.loop import train

SHORT: dict[str, Any] = {
    "steps": 4, "eval_every": 4, "sample_every": 0, "context_length": 16, "batch_size": 4, "device": "cpu",
    "dtype": "float32",
}  # fmt: skip


def losses(corpus: Corpus, **given: Any) -> list[float]:
    settings = {
        name: given.pop(name)
        for name in list(given)
        if name in TrainConfig.__dataclass_fields__ and name != "optimizer" and not callable(given[name])
    }
    config = TrainConfig(**SHORT, optimizer="adamw", **settings)
    return [event.loss for event in train(new_model(), corpus, config, **given) if isinstance(event, Step)]


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits, targets)


def test_a_loss_of_the_logits_trains_the_same_model_as_the_built_in_one(corpus: Corpus) -> None:
    assert losses(corpus, loss_fn=cross_entropy) == pytest.approx(losses(corpus), rel=1e-4)
    smoothed = losses(corpus, loss_fn=lambda logits, targets: F.cross_entropy(logits, targets, label_smoothing=0.5))
    assert smoothed[-1] > losses(corpus)[-1] + 0.02


def test_the_loss_gets_float32_logits_of_the_scored_positions(corpus: Corpus) -> None:
    shapes = []

    def loss_fn(logits: Tensor, targets: Tensor) -> Tensor:
        shapes.append((tuple(logits.shape), logits.dtype, tuple(targets.shape)))
        return F.cross_entropy(logits, targets)

    losses(corpus, loss_fn=loss_fn, micro_batch_size=2)
    assert set(shapes) == {((32, 257), torch.float32, (32,))}


def test_an_optimizer_is_used_at_the_scheduled_learning_rate(corpus: Corpus) -> None:
    rates = []

    class Watched(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            rates.append(self.param_groups[0]["lr"])
            super().step(closure)

    def optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
        return Watched(model.parameters(), lr=0.5, momentum=0.9)

    losses(corpus, optimizer=optimizer, learning_rate=0.5, schedule="constant", warmup_steps=2)
    assert rates == [0.25, 0.5, 0.5, 0.5]


def test_a_schedule_replaces_warmup_and_decay_and_its_learning_rate_is_reported(corpus: Corpus) -> None:
    asked = []

    def schedule(step: int, progress: float) -> float:
        asked.append((step, progress))
        return 1 / (1 + step)

    config = TrainConfig(**SHORT, schedule="constant", learning_rate=0.1)
    steps = [event for event in train(new_model(), corpus, config, schedule=schedule) if isinstance(event, Step)]
    assert asked == [(0, 0.0), (1, 0.25), (2, 0.5), (3, 0.75)]
    assert [step.learning_rate for step in steps] == pytest.approx([0.1, 0.05, 0.1 / 3, 0.025])


@pytest.mark.parametrize("settings", [{}, {"sampled_softmax": 40}, {"token_noise": 0.1}])
def test_a_batch_transform_changes_what_every_step_reads(corpus: Corpus, settings: dict[str, Any]) -> None:
    seen = []

    def second_half_only(inputs: Tensor, targets: Tensor, step: int) -> tuple[Tensor, Tensor]:
        seen.append(step)
        masked = targets.clone()
        masked[:, : targets.shape[1] // 2] = -100
        return inputs, masked

    changed = losses(corpus, batch_transform=second_half_only, **settings)
    assert seen == [0, 1, 2, 3]
    assert changed != losses(corpus, **settings)
    kept = losses(corpus, batch_transform=lambda inputs, targets, step: (inputs, targets), **settings)
    assert kept == pytest.approx(losses(corpus, **settings), rel=1e-5)


def test_callbacks_get_every_event_and_an_error_in_one_ends_the_run(corpus: Corpus) -> None:
    got: list[Event] = []
    config = TrainConfig(**SHORT)
    events = list(train(new_model(), corpus, config, callbacks=[got.append]))
    assert got == events

    def fail(event: Event) -> None:
        if isinstance(event, Step) and event.step == 2:
            raise ValueError("stop here")

    with pytest.raises(ValueError, match="stop here"):
        list(train(new_model(), corpus, config, callbacks=[fail]))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"loss_fn": cross_entropy, "sampled_softmax": 40}, "give sampled_softmax=0"),
        ({"loss_fn": lambda logits, targets: 1.0}, "loss_fn returned float; it must be the mean loss"),
        ({"loss_fn": lambda logits, targets: targets.float()}, r"loss_fn returned a tensor of shape \(64,\)"),
        ({"loss_fn": 3}, r"loss_fn \(3\) must be a function"),
        ({"optimizer": lambda model: 3}, "optimizer returned int; it must be a torch.optim.Optimizer"),
        ({"optimizer": lambda model: [3]}, "optimizer returned int"),
        (
            {"optimizer": lambda model: torch.optim.SGD(model.parameters(), lr=0.1)},
            r"the optimizer's lr \(0.1\) must be the learning_rate of the settings \(0.003\)",
        ),
        ({"schedule": lambda step, progress: 1.0}, r"replaces that of the settings \(trapezoid\)"),
        (
            {"batch_transform": lambda inputs, targets, step: (inputs[:1], targets[:1])},
            "it must keep the 4 rows",
        ),
        ({"loss_function": cross_entropy}, "loss_function cannot be given to train"),
    ],
)
def test_what_cannot_be_is_one_sentence(corpus: Corpus, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        losses(corpus, **given)


def test_fit_takes_functions_and_a_run_continues_only_with_them(here: Path) -> None:
    settings = {**SHORT, "n_layer": 1, "n_head": 2, "n_embd": 16, "tokenizer": "bytes", "sampled_softmax": 0}

    def fit(**more: Any) -> list[Event]:
        return list(minigpt.fit("fox.txt", name="fox", report=False, **settings | more))

    fit(loss_fn=cross_entropy)
    with pytest.raises(ConfigError, match="trained with loss_fn cross_entropy given in Python, and now has none"):
        fit(steps=8, resume=True)
    resumed = [event.step for event in fit(steps=8, resume=True, loss_fn=cross_entropy) if isinstance(event, Step)]
    assert resumed[-1] == 8
