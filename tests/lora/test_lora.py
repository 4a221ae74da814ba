"""LoRA layers: their formula, where training starts, what is trained, and which parts of a model run."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from builders import random_model
from torch import Tensor

from minigpt.config import TrainConfig
from minigpt.errors import ConfigError
from minigpt.lora.fine_tuning import apply_fine_tuning, trained_parameters
from minigpt.lora.layers import LoRA, LoRALinear, lora_layers
from minigpt.model.gpt import GPT
from minigpt.storage.adapters import trained_state
from minigpt.training.loss import LossModel, next_token_loss
from minigpt.training.memory import checkpoint_blocks

IDS = torch.arange(12).reshape(2, 6)


def adapted(**settings: Any) -> GPT:
    model = random_model(n_layer=3)
    apply_fine_tuning(model, TrainConfig(lora=True, **({"lora_rank": 4} | settings)))
    return model


def test_the_layer_adds_the_scaled_product_of_its_matrices() -> None:
    torch.manual_seed(0)
    base = torch.nn.Linear(5, 7).double()
    layer = LoRALinear(base, LoRA(rank=3, alpha=6, dropout=0.0, targets=())).double()
    layer.lora_b.data.normal_()
    x = torch.randn(2, 5, dtype=torch.float64)
    expected = F.linear(x, base.weight + 6 / 3 * layer.lora_b @ layer.lora_a, base.bias)
    torch.testing.assert_close(layer(x), expected)


def test_a_new_adapter_does_not_change_the_model() -> None:
    assert torch.equal(adapted()(IDS), random_model(n_layer=3)(IDS))


def test_only_the_adapter_is_trained_and_saved() -> None:
    model = adapted(freeze=1, lora_targets="up_proj,qkv_proj")
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    layers = [f"blocks.{block}.{name}" for block in (1, 2) for name in ("attention.qkv_proj", "mlp.up_proj")]
    assert trained == {f"{layer}.{part}" for layer in layers for part in ("lora_a", "lora_b")}
    assert trained_state(model).keys() == trained
    assert [name for name, _ in lora_layers(model)] == layers


@pytest.mark.parametrize(
    "settings",
    [
        {"lora": True},
        {"lora": True, "lora_embedding": True},
        {"lora": True, "lora_targets": "down_proj", "freeze": 2},
        {"freeze": 1},
        {"freeze": 2},
        {},
    ],
)
def test_the_number_of_trained_parameters_is_counted_without_a_model(settings: dict[str, Any]) -> None:
    model, config = random_model(n_layer=3), TrainConfig(lora_rank=5, **settings)
    apply_fine_tuning(model, config)
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert trained_parameters(model.config, config) == trained


def test_frozen_blocks_keep_nothing_for_a_backward_pass() -> None:
    model = random_model(n_layer=3)
    apply_fine_tuning(model, TrainConfig(freeze=2))
    stages = {(stage.name, stage.layer): stage.output for stage in model.trace(IDS)}
    assert not stages["mlp_residual", 1].requires_grad
    assert stages["mlp_residual", 2].requires_grad


def test_a_frozen_head_gives_the_same_loss_and_gradient_and_has_none_itself() -> None:
    torch.manual_seed(0)
    features, head, targets = torch.randn(2, 3, 8), torch.randn(11, 8), torch.randint(11, (2, 3))
    results = {}
    for frozen in (False, True):
        x, weight = features.clone().requires_grad_(), head.clone().requires_grad_(not frozen)
        loss = next_token_loss(x, weight, targets)
        loss.backward()
        results[frozen] = loss.detach(), x.grad
        assert (weight.grad is None) == frozen
    assert torch.equal(results[True][0], results[False][0])
    assert torch.equal(results[True][1], results[False][1])


def test_gradients_of_the_adapter_are_those_of_the_formula() -> None:
    model = adapted(lora_targets="down_proj").double()
    for _, layer in lora_layers(model):
        layer.lora_b.data.normal_(0, 0.1)

    def loss() -> Tensor:
        return F.cross_entropy(model(IDS).flatten(0, 1), IDS.flip(1).flatten())

    LossModel(model)(IDS, IDS.flip(1)).backward()
    (_, layer), *_ = lora_layers(model)
    before, step, gradient = loss(), 1e-6, layer.lora_a.grad[0, 0].item()
    layer.lora_a.data[0, 0] += step
    assert (loss() - before).item() / step == pytest.approx(gradient, rel=1e-4, abs=1e-9)


def test_settings_that_do_not_fit_the_model_are_refused() -> None:
    for settings, message in (
        ({"lora": True, "lora_rank": 17}, r"lora_rank \(17\) must be at most the model's width \(16\)"),
        ({"freeze": 2}, r"freeze \(2\) must be below the model's number of blocks \(2\)"),
    ):
        with pytest.raises(ConfigError, match=message):
            apply_fine_tuning(random_model(), TrainConfig(**settings))
    for settings, message in (
        ({"lora_targets": "c_attn"}, r"lora_targets \('c_attn'\) must be all, or some of qkv_proj"),
        ({"lora_targets": "all,qkv_proj"}, "must be all, or some of"),
        ({"lora_targets": ""}, "must be all, or some of"),
        ({"lora_rank": 0}, r"lora_rank \(0\) must be at least 1"),
        ({"lora": True, "sharding": "on"}, r"lora \(on\) cannot be combined with sharding \(on\)"),
    ):
        with pytest.raises(ConfigError, match=message):
            TrainConfig(**settings)


@pytest.mark.parametrize("settings", [{}, {"base_dtype": "int8"}, {"freeze": 1}, {"lora_embedding": True}])
def test_recomputed_activations_give_the_same_gradients(settings: dict[str, Any]) -> None:
    gradients = []
    for recompute in (False, True):
        torch.manual_seed(5)
        model = adapted(**settings)
        for _, layer in lora_layers(model):
            layer.lora_b.data.normal_()
        if recompute:
            checkpoint_blocks(model)
        LossModel(model)(IDS, IDS.flip(1)).backward()
        gradients.append([parameter.grad for parameter in model.parameters() if parameter.requires_grad])
    for plain, again in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, again)


def test_an_adapter_is_trained_in_bfloat16_by_autocast() -> None:
    model = adapted(lora_dropout=0.1).train()
    with torch.autocast("cpu", torch.bfloat16):
        loss = LossModel(model)(IDS, IDS.flip(1))
    loss.backward()
    assert all(parameter.grad.dtype == torch.float32 for parameter in model.parameters() if parameter.requires_grad)
