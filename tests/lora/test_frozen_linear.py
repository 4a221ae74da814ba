"""Frozen layers in int8 and bfloat16: how close they are, their gradients, and what they keep in memory."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from builders import random_model
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from minigpt.autoplan.memory_estimates import state_bytes
from minigpt.config import TrainConfig
from minigpt.lora.fine_tuning import apply_fine_tuning
from minigpt.lora.frozen_linear import FrozenLinear, expand

IDS = torch.arange(12).reshape(2, 6)


def linear(seed: int = 0) -> torch.nn.Linear:
    torch.manual_seed(seed)
    return torch.nn.Linear(13, 7)


def test_int8_rounds_every_row_to_127_steps_of_its_largest_number() -> None:
    exact = linear()
    exact.weight.data[3] *= 100  # the others are not rounded to larger steps for it
    exact.weight.data[4] = 0
    frozen = FrozenLinear(exact, "int8")
    assert frozen.weight.dtype == torch.int8
    found = expand(frozen.weight, frozen.scale, torch.float32)
    step = exact.weight.abs().amax(dim=1, keepdim=True) / 127
    assert ((found - exact.weight).abs() <= step * 0.501).all()
    assert (found[4] == 0).all()


def test_bfloat16_is_rounded_as_torch_rounds() -> None:
    exact, x = linear(), torch.randn(2, 3, 13)
    expected = F.linear(x, exact.weight.bfloat16().float(), exact.bias)
    torch.testing.assert_close(FrozenLinear(exact, "bfloat16")(x), expected)


@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
@pytest.mark.parametrize("autocast", [False, True])
def test_the_output_and_the_gradient_are_those_of_the_expanded_matrix(
    dtype: Literal["int8", "bfloat16"], autocast: bool
) -> None:
    frozen = FrozenLinear(linear(), dtype)
    matrix = expand(frozen.weight, frozen.scale, torch.float32)
    results = []
    for compute in (frozen, lambda x: F.linear(x, matrix, frozen.bias)):
        x = torch.linspace(-1, 1, 39).reshape(3, 13).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            y = compute(x)
        y.float().square().sum().backward()
        results.append((y, x.grad))
    (ours, our_gradient), (expected, gradient) = results
    assert ours.dtype == expected.dtype
    torch.testing.assert_close(ours, expected)
    torch.testing.assert_close(our_gradient, gradient, atol=0.05 if autocast else 1e-6, rtol=0.05 if autocast else 1e-5)


def test_only_stored_weights_are_kept_for_the_backward_pass() -> None:
    frozen, kept = FrozenLinear(linear(), "int8"), []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        frozen(torch.randn(4, 13, requires_grad=True))
    assert kept == []


@pytest.mark.parametrize("autocast", [False, True])
def test_a_matrix_is_expanded_in_memory_that_is_used_again(*, autocast: bool) -> None:
    torch.manual_seed(0)
    frozen = FrozenLinear(torch.nn.Linear(64, 4096), "int8")
    x = torch.randn(1, 64, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        frozen(x).sum().backward()  # this allocates the buffers
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            frozen(x).sum().backward()
    largest = max(event.cpu_memory_usage for event in profiler.events())
    assert 0 < largest < frozen.weight.numel()


def test_training_can_follow_an_evaluation_that_was_the_first_to_expand_a_matrix() -> None:
    frozen, x = FrozenLinear(torch.nn.Linear(4, 6), "int8"), torch.ones(1, 4, requires_grad=True)

    def evaluate_and_train() -> Tensor:
        with torch.inference_mode():
            frozen(x)
        frozen(x).sum().backward()
        return x.grad

    with ThreadPoolExecutor(1) as pool:  # a new thread has no buffers yet
        assert pool.submit(evaluate_and_train).result().shape == (1, 4)


@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
def test_a_compressed_model_is_close_and_as_small_as_it_is_estimated(dtype: Literal["int8", "bfloat16"]) -> None:
    settings: dict[str, Any] = {"lora": True, "lora_rank": 2, "lora_targets": "qkv_proj,down_proj", "base_dtype": dtype}
    exact = random_model(n_layer=3, n_embd=64, std=0.05)
    model = random_model(n_layer=3, n_embd=64, std=0.05)
    apply_fine_tuning(model, TrainConfig(**settings))
    difference = (model(IDS) - exact(IDS)).abs().max() / exact(IDS).std()
    assert 0 < difference < 0.05
    held = sum(tensor.nbytes for tensor in model.state_dict().values())
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    estimated = state_bytes(model.config, "adamw", training=TrainConfig(**settings))
    assert estimated == pytest.approx(held + 12 * trained + 16 * 64**2, rel=0.02)
