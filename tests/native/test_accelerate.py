"""`accelerate` changes how a model computes, and neither what it computes nor what it consists of."""

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from minigpt import GPT, GPTConfig
from minigpt.model.attention import CausalSelfAttention
from minigpt.model.gpt import MLP, Block
from minigpt.native import accelerate as native
from minigpt.native import compiled
from minigpt.native.accelerate import AcceleratedBlock, Attention, Linear, accelerate

CONFIG = GPTConfig(vocab_size=70, n_positions=24, n_embd=96, n_layer=2, n_head=3, dropout=0.0)


@pytest.fixture(autouse=True)
def _kinds_are_tried_again() -> Iterator[None]:
    native._kinds.cache_clear()
    yield
    native._kinds.cache_clear()


def new_model() -> GPT:
    torch.manual_seed(0)
    return GPT(CONFIG)


def accelerated(model: GPT) -> GPT:
    model = copy.deepcopy(model)
    accelerate(model)
    return model


def kinds(model: GPT) -> set[type[nn.Module]]:
    return {type(module) for module in model.modules()}


def test_parameters_state_and_names_stay() -> None:
    model = new_model()
    parameters, names, state = list(model.parameters()), [name for name, _ in model.named_modules()], model.state_dict()
    accelerate(model)
    assert all(one is other for one, other in zip(model.parameters(), parameters, strict=True))
    assert [name for name, _ in model.named_modules()] == names
    assert model.state_dict().keys() == state.keys()
    assert kinds(model) >= {Attention, AcceleratedBlock, Linear, MLP, GPT}
    assert not kinds(model) & {CausalSelfAttention, Block, nn.Linear, nn.LayerNorm, nn.GELU}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_results_and_gradients_are_those_of_the_plain_model(dtype: torch.dtype) -> None:
    plain = new_model()
    fast = accelerated(plain)
    ids = torch.arange(72).reshape(3, 24) * 31 % 70

    def results(model: GPT) -> list[Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            logits = model(ids)
        logits.float().square().mean().backward()
        return [logits.detach().float(), *(parameter.grad for parameter in model.parameters())]

    tolerance = 1e-4 if dtype == torch.float32 else 0.05
    for found, expected in zip(results(fast), results(plain), strict=True):
        assert (found - expected).norm() <= tolerance * expected.norm()


def test_changed_code_is_left_as_it_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def parallel(self: Block, x: Tensor, cache: object = None) -> Tensor:
        return x + self.attention(self.attention_norm(x), cache) + self.mlp(self.mlp_norm(x))

    plain = new_model()
    original = plain(ids := torch.arange(24)[None])
    monkeypatch.setattr(Block, "forward", parallel)
    expected, found = plain(ids), accelerated(plain)(ids)
    assert (expected - original).abs().max() > 1e-3
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert AcceleratedBlock not in kinds(accelerated(plain))
    assert Attention in kinds(accelerated(plain))


def test_subclasses_are_left_as_they_are() -> None:
    class Mine(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    model = new_model()
    model.blocks[0].mlp.up_proj = Mine(96, 384)
    assert Mine in kinds(accelerated(model))


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("formula_positions", [0, 512])
def test_without_c_code_bfloat16_equals_float32_to_within_rounding_by_kernel_and_by_formula(
    monkeypatch: pytest.MonkeyPatch, formula_positions: int, dropout: float
) -> None:
    monkeypatch.setattr(compiled, "library", lambda: None)
    monkeypatch.setattr(native, "_FORMULA_POSITIONS", formula_positions)
    model = GPT(CONFIG.replace(dropout=dropout)).eval()  # no dropout, by kernel or by formula
    accelerate(model)
    attention = model.blocks[0].attention
    assert isinstance(attention, Attention)
    x = torch.randn(2, 7, 96).requires_grad_()
    expected = attention(x)
    with torch.autocast("cpu", torch.bfloat16):
        found = attention(x)
    assert found.dtype == torch.bfloat16
    assert (found - expected).norm() / expected.norm() < 0.02
    expected_gradient, gradient = (torch.autograd.grad(y.square().sum(), x)[0] for y in (expected, found))
    assert (gradient - expected_gradient).norm() / expected_gradient.norm() < 0.03
    changed = x.detach().clone()
    changed[:, -1] += 5
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(attention(changed)[:, :-1], found[:, :-1])
