"""The learning-rate schedule, and the parameters with weight decay."""

import math
from typing import Any

import pytest
import torch

from minigpt.config import GPTConfig, TrainConfig
from minigpt.model.gpt import GPT
from minigpt.training.budget import learning_rate
from minigpt.training.optimizers import build_optimizers


def test_warmup_is_linear_in_steps() -> None:
    config = TrainConfig(steps=100, schedule="constant", warmup_steps=4, learning_rate=0.8)
    assert [learning_rate(step, 0.0, config) for step in range(6)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])


def test_the_default_warmup_takes_a_tenth_of_a_short_run() -> None:
    config = TrainConfig(steps=50, schedule="constant", learning_rate=1.0)
    learning_rates = [learning_rate(step, step / 50, config) for step in range(50)]
    assert learning_rates[0] == pytest.approx(0.01)
    assert learning_rates[2] == pytest.approx(0.4)
    assert learning_rates[5:] == [1.0] * 45
    long = [learning_rate(step, step / 10_000, config) for step in (0, 49, 99)]
    assert long == pytest.approx([0.01, 0.5, 1.0])


def test_cosine_falls_from_the_peak_to_the_floor() -> None:
    config = TrainConfig(steps=100, schedule="cosine", warmup_steps=0, learning_rate=1.0, final_learning_rate=0.1)
    assert learning_rate(0, 0.0, config) == pytest.approx(1.0)
    assert learning_rate(50, 0.5, config) == pytest.approx(0.55)
    assert learning_rate(25, 0.25, config) == pytest.approx(0.1 + 0.9 * (1 + math.cos(math.pi / 4)) / 2)
    assert learning_rate(100, 1.0, config) == pytest.approx(0.1)


def test_trapezoid_is_flat_until_its_cooldown() -> None:
    config = TrainConfig(
        steps=100, schedule="trapezoid", cooldown=0.4, warmup_steps=0, learning_rate=1.0, final_learning_rate=0.0
    )
    learning_rates = [learning_rate(1, share, config) for share in (0.0, 0.6, 0.8, 1.0)]
    assert learning_rates == pytest.approx([1.0, 1.0, 0.5, 0.0])


@pytest.mark.parametrize("name", ["muon", "adamw"])
def test_matrices_decay_and_vectors_do_not(name: Any) -> None:
    model = GPT(GPTConfig(vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=2))
    optimizers = build_optimizers(model, TrainConfig(steps=1, weight_decay=0.5, learning_rate=0.1, optimizer=name))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)  # only weight decay changes the weights
    for optimizer in optimizers:
        optimizer.step()
    for name, parameter in model.named_parameters():
        expected = before[name] * (0.95 if parameter.dim() == 2 else 1.0)
        torch.testing.assert_close(parameter.detach(), expected)


def test_a_beta_may_be_a_whole_number() -> None:
    model = GPT(GPTConfig(vocab_size=9, n_positions=4, n_embd=4, n_layer=1, n_head=1))
    (optimizer,) = build_optimizers(model, TrainConfig(steps=1, optimizer="adamw", beta2=0), torch.float32)
    assert optimizer.defaults["betas"] == (0.9, 0.0)
