"""The origin of NaN and infinite values is named, whatever stage it is."""

import math

import pytest
import torch
from builders import new_model

from minigpt.model.gpt import GPT
from minigpt.model.nonfinite import first_nonfinite

IDS = torch.tensor([[1, 2, 3]])


def small_model() -> GPT:
    return new_model(vocab_size=10, n_positions=4, n_embd=8, n_layer=3, n_head=2, dropout=0.5).train()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_damaged_parameter_is_named_even_if_no_token_uses_it(value: float) -> None:
    model = small_model()
    model.token_embedding.weight.data[9, :2] = value
    model.get_parameter("blocks.2.mlp.up_proj.bias").data[0] = value
    assert first_nonfinite(model, IDS) == "the parameter token_embedding.weight (2 of its 80 values are not finite)"


BIG = 3e38  # 2 * BIG overflows float32


@pytest.mark.parametrize(
    ("outputs", "stage"),
    [
        ({"embedding_dropout": math.inf}, "embedding"),
        ({"blocks.0.attention_norm": math.nan}, "attention norm of block 0"),
        ({"blocks.1.attention": math.inf, "blocks.2.attention": math.nan}, "attention of block 1"),
        (
            {"embedding_dropout": BIG, "blocks.0.attention_norm": 0, "blocks.0.attention": BIG},
            "residual sum after attention of block 0",
        ),
        ({"blocks.2.mlp_norm": math.inf}, "MLP norm of block 2"),
        ({"blocks.2.mlp": -math.inf}, "MLP of block 2"),
        (
            {"blocks.1.attention": BIG, "blocks.1.mlp_norm": 0, "blocks.1.mlp": BIG},
            "residual sum after the MLP of block 1",
        ),
        ({"final_norm": math.nan}, "final norm"),
        ({"final_norm": BIG}, "logits"),
    ],
)
def test_the_first_stage_with_a_nonfinite_output_is_named(outputs: dict[str, float], stage: str) -> None:
    model = small_model()
    model.token_embedding.weight.data.fill_(1)
    for name, value in outputs.items():
        model.get_submodule(name).register_forward_hook(
            lambda module, arguments, output, value=value: torch.full_like(output, value)
        )
    assert first_nonfinite(model, IDS) == f"the {stage}, although its input is finite"


def test_no_stage_of_a_finite_model_is_named_and_it_stays_in_train_mode() -> None:
    model = small_model()
    assert first_nonfinite(model, torch.tensor([[1, 2, 3, 4, 5, 6]])) == "no stage of PyTorch's forward pass"
    assert model.training


def test_dropout_cannot_cause_an_overflow() -> None:
    model = small_model()
    model.token_embedding.weight.data.fill_(2e38)  # dropout would double it
    assert not first_nonfinite(model, IDS).startswith("the embedding")
