"""What is named where a model's numbers go wrong, for damage at every stage."""

import math

import pytest
import torch

from minigpt.config import GPTConfig
from minigpt.generation.nonfinite import first_nonfinite
from minigpt.model.gpt import GPT

IDS = torch.tensor([[1, 2, 3]])


def small_model() -> GPT:
    torch.manual_seed(0)
    config = GPTConfig(vocab_size=10, n_positions=4, n_embd=8, n_layer=3, n_head=2, dropout=0.5)
    return GPT(config).train()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_damaged_parameter_is_named_even_where_no_token_meets_it(value: float) -> None:
    model = small_model()
    model.token_embedding.weight.data[9, :2] = value
    model.get_parameter("blocks.2.mlp.up_proj.bias").data[0] = value
    assert first_nonfinite(model, IDS) == ("the parameter token_embedding.weight, 2 of whose 80 values are not finite")


BIG = 3e38  # twice it is more than float32 holds


@pytest.mark.parametrize(
    ("outputs", "stage"),
    [
        ({"embedding_dropout": math.inf}, "the embedding"),
        ({"blocks.0.attention_norm": math.nan}, "block 0's attention norm"),
        ({"blocks.1.attention": math.inf, "blocks.2.attention": math.nan}, "block 1's attention"),
        (
            {"embedding_dropout": BIG, "blocks.0.attention_norm": 0, "blocks.0.attention": BIG},
            "the sum after block 0's attention",
        ),
        ({"blocks.2.mlp_norm": math.inf}, "block 2's MLP norm"),
        ({"blocks.2.mlp": -math.inf}, "block 2's MLP"),
        ({"blocks.1.attention": BIG, "blocks.1.mlp_norm": 0, "blocks.1.mlp": BIG}, "the sum after block 1's MLP"),
        ({"final_norm": math.nan}, "the final norm"),
        ({"final_norm": BIG}, "the logits"),
    ],
)
def test_the_stage_that_goes_wrong_first_is_named(outputs: dict[str, float], stage: str) -> None:
    model = small_model()
    model.token_embedding.weight.data.fill_(1)
    for name, value in outputs.items():
        model.get_submodule(name).register_forward_hook(
            lambda module, arguments, output, value=value: torch.full_like(output, value)
        )
    assert first_nonfinite(model, IDS) == f"{stage}, from finite values"


def test_a_sound_model_is_not_blamed_and_keeps_its_mode() -> None:
    model = small_model()
    assert first_nonfinite(model, torch.tensor([[1, 2, 3, 4, 5, 6]])).startswith("nothing in the model")
    assert model.training


def test_dropout_is_not_what_goes_wrong() -> None:
    model = small_model()
    model.token_embedding.weight.data.fill_(2e38)  # which dropout would double
    assert not first_nonfinite(model, IDS).startswith("the embedding")
