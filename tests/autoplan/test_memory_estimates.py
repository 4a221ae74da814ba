"""The memory estimates against what autograd saves and the optimizers hold."""

from typing import Any

import pytest
import torch
from torch import Tensor

from minigpt.autoplan.memory_estimates import activation_bytes, state_bytes, teacher_bytes
from minigpt.config import GPTConfig, TrainConfig
from minigpt.lora.fine_tuning import apply_fine_tuning
from minigpt.model.gpt import GPT
from minigpt.training.memory import checkpoint_blocks
from minigpt.training.optimizers import build_optimizers


def kept_by_autograd(model: GPT, context: int, sequences: int) -> int:
    """Bytes that a forward pass saves for the backward pass, without the weights."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.features(torch.zeros((sequences, context), dtype=torch.int64))
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize(("layers", "width", "context", "sequences"), [(4, 128, 128, 8), (8, 256, 64, 4)])
def test_the_estimated_activations_are_what_autograd_saves(
    layers: int, width: int, context: int, sequences: int, dropout: float
) -> None:
    config = GPTConfig(
        vocab_size=1, n_positions=context, n_embd=width, n_layer=layers, n_head=4, dropout=dropout
    )  # a vocabulary of one token: almost no head
    kept = kept_by_autograd(GPT(config), context, sequences)
    assert activation_bytes(config, context, sequences) == pytest.approx(kept, rel=0.2)


def test_checkpointing_saves_little_more_than_the_input_of_each_block() -> None:
    config = GPTConfig(vocab_size=1, n_positions=64, n_embd=64, n_layer=8, n_head=4)
    model = GPT(config)
    plain = kept_by_autograd(model, 64, 8)
    checkpoint_blocks(model)
    kept = kept_by_autograd(model, 64, 8)
    assert kept < plain / 6
    assert kept < activation_bytes(config, 64, 8, recompute=True) < plain / 2


def test_blocks_are_checkpointed_once_in_two_trainings_of_a_model() -> None:
    model = GPT(GPTConfig(vocab_size=1, n_positions=8, n_embd=8, n_layer=2, n_head=2))
    checkpoint_blocks(model)
    forwards = [block.forward for block in model.blocks]
    checkpoint_blocks(model)
    assert [block.forward for block in model.blocks] == forwards


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_the_estimated_state_is_what_the_optimizers_hold(optimizer: str) -> None:
    config = GPTConfig(vocab_size=300, n_positions=64, n_embd=64, n_layer=3, n_head=4)
    model = GPT(config)
    optimizers = build_optimizers(model, TrainConfig(steps=1, optimizer=optimizer))  # type: ignore[arg-type]
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    held = sum(2 * parameter.nbytes for parameter in model.parameters())  # weights and gradients
    for one in optimizers:
        one.step()
        held += sum(tensor.nbytes for state in one.state.values() for tensor in state.values())
    assert state_bytes(config, optimizer) == pytest.approx(held, rel=0.01)


def test_a_sharded_process_has_its_shard_and_what_is_computed_now() -> None:
    config = GPTConfig(vocab_size=300, n_positions=64, n_embd=64, n_layer=30, n_head=4)
    whole, weights = state_bytes(config, "adamw"), 4 * config.n_parameters
    assert state_bytes(config, "adamw", 30) == weights  # with which the main process starts
    assert weights < state_bytes(config, "adamw", 2) < whole
    assert state_bytes(config, "adamw", 8) < 0.35 * whole
    flat = config.replace(n_layer=2)  # every block is unsharded in a step, with its gradients
    assert state_bytes(flat, "adamw", 8) == state_bytes(flat, "adamw") // 8 + 8 * flat.n_parameters


@pytest.mark.parametrize(
    "settings", [{"lora": True, "lora_rank": 4}, {"lora": True, "lora_rank": 4, "freeze": 2}, {"freeze": 3}]
)
@pytest.mark.parametrize("base_dtype", ["float32", "int8"])
def test_the_estimated_activations_of_a_fine_tune_are_what_autograd_saves(
    settings: dict[str, Any], base_dtype: str
) -> None:
    shape = GPTConfig(vocab_size=1, n_positions=64, n_embd=128, n_layer=4, n_head=4)
    config = TrainConfig(**settings, **({"base_dtype": base_dtype} if "lora" in settings else {}))
    model = GPT(shape)
    apply_fine_tuning(model, config)
    kept = kept_by_autograd(model, 64, 8)
    estimated = activation_bytes(shape, 64, 8, on_cpu=False, training=config)  # without a CPU's allocator
    assert estimated == pytest.approx(kept, rel=0.25)


def test_a_teacher_has_its_own_causal_mask() -> None:
    short = GPTConfig(vocab_size=300, n_positions=64, n_embd=16, n_layer=2, n_head=4)
    long = short.replace(n_positions=65)
    assert teacher_bytes(long, 64, 1) - teacher_bytes(short, 64, 1) == 65**2 - 64**2 + 4 * 16


def test_a_frozen_head_has_no_gradient_in_the_estimate() -> None:
    shape = GPTConfig(vocab_size=1000, n_positions=64, n_embd=64, n_layer=2, n_head=4)
    whole = activation_bytes(shape, 64, 1, on_cpu=False)
    cases = (({"freeze": 0}, 0), ({"lora": True}, 4 * 1000 * 64), ({"lora": True, "lora_embedding": True}, 0))
    for settings, saved in cases:
        assert whole - activation_bytes(shape, 64, 1, on_cpu=False, training=TrainConfig(**settings)) == saved


@pytest.mark.parametrize(
    "settings",
    [
        {"lora": True},
        {"lora": True, "lora_embedding": True},
        {"lora": True, "lora_targets": "up_proj", "freeze": 1},
        {"freeze": 1},
    ],
)
def test_the_estimated_state_of_a_fine_tune_is_what_the_optimizer_holds(settings: dict[str, Any]) -> None:
    shape = GPTConfig(vocab_size=300, n_positions=64, n_embd=64, n_layer=3, n_head=4)
    config, model = TrainConfig(optimizer="adamw", **settings), GPT(shape)
    apply_fine_tuning(model, config)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.grad = torch.ones_like(parameter)
    (optimizer,) = build_optimizers(model, config)
    optimizer.step()
    held = sum(parameter.nbytes for parameter in model.parameters()) + sum(parameter.nbytes for parameter in trained)
    held += sum(tensor.nbytes for state in optimizer.state.values() for tensor in state.values())
    assert state_bytes(shape, "adamw", training=config) == pytest.approx(held, rel=0.01)
