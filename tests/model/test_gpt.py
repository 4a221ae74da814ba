"""The model: its size, initial weights, causality, cache, tied head and traced forward pass."""

import math

import pytest
import torch
import torch.nn.functional as F
from builders import random_model
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from minigpt.config import PRESETS, GPTConfig
from minigpt.errors import ConfigError
from minigpt.model.gpt import GPT, MLP

CONFIG = GPTConfig(vocab_size=31, n_positions=10, n_embd=12, n_layer=3, n_head=3)


def double_model(config: GPTConfig = CONFIG, seed: int = 0) -> GPT:
    return random_model(config, seed=seed).double().train()


def some_ids(b: int, t: int, seed: int = 1) -> Tensor:
    return torch.randint(CONFIG.vocab_size, (b, t), generator=torch.Generator().manual_seed(seed))


# Size


@pytest.mark.parametrize(
    ("name", "parameters", "heads"),
    [
        ("gpt2", 124_439_808, 12),
        ("gpt2-medium", 354_823_168, 16),
        ("gpt2-large", 774_030_080, 20),
        ("gpt2-xl", 1_557_611_200, 25),
    ],
)
def test_the_presets_have_openais_parameters_and_heads(name: str, parameters: int, heads: int) -> None:
    config = PRESETS[name]
    with torch.device("meta"):  # shapes without memory
        model = GPT(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert config.n_parameters == parameters
    assert config.n_head == heads
    assert config.n_positions == 1024
    assert config.vocab_size == 50257


@settings(deadline=None, max_examples=20)
@given(v=st.integers(1, 50), p=st.integers(1, 20), n=st.integers(1, 3), h=st.integers(1, 4), d=st.integers(1, 6))
def test_the_config_counts_the_parameters_that_the_model_has(v: int, p: int, n: int, h: int, d: int) -> None:
    config = GPTConfig(vocab_size=v, n_positions=p, n_embd=h * d, n_layer=n, n_head=h)
    with torch.device("meta"):
        assert sum(parameter.numel() for parameter in GPT(config).parameters()) == config.n_parameters


# The initial weights


def test_initial_weights_are_gpt2s() -> None:
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=500, n_positions=200, n_embd=96, n_layer=8, n_head=4))
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            residual = name.endswith(("attention.out_proj.weight", "mlp.down_proj.weight"))
            std = 0.02 / math.sqrt(2 * 8) if residual else 0.02
            spread = parameter.numel() ** -0.5  # of the mean, in deviations; 1/√2 of it for the deviation
            assert parameter.std().item() == pytest.approx(std, rel=5 * spread), name
            assert abs(parameter.mean().item()) < 5 * spread * std, name
        else:
            assert parameter.eq(0 if name.endswith("bias") else 1).all(), name


def test_the_loss_of_a_new_model_is_that_of_a_uniform_distribution() -> None:
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=500, n_positions=32, n_embd=64, n_layer=4, n_head=4))
    ids = torch.randint(500, (8, 33))
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    assert loss.item() == pytest.approx(math.log(500), abs=0.1)


# The function


def test_gelu_is_the_tanh_form_and_not_the_error_function() -> None:
    torch.manual_seed(0)
    mlp, x = MLP(CONFIG).double(), 3 * torch.randn(4, 5, CONFIG.n_embd, dtype=torch.float64)
    u = mlp.up_proj(x)
    tanh_form = 0.5 * u * (1 + torch.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u**3)))
    torch.testing.assert_close(mlp(x), mlp.down_proj(tanh_form), rtol=1e-12, atol=1e-13)
    assert (mlp(x) - mlp.down_proj(F.gelu(u))).abs().max() > 1e-5


def test_the_model_equals_one_built_from_pytorchs_own_modules() -> None:
    """Pre-norm blocks, residual sums, a final norm and the tied head."""
    model, ids = double_model(CONFIG.replace(layer_norm_epsilon=0.01)), some_ids(2, 7)

    def norm(x: Tensor, layer: nn.LayerNorm) -> Tensor:
        centred = x - x.mean(dim=-1, keepdim=True)
        return centred / (centred.square().mean(dim=-1, keepdim=True) + 0.01).sqrt() * layer.weight + layer.bias

    x = model.token_embedding.weight[ids] + model.position_embedding.weight[:7]
    for block in model.blocks:
        torchs = nn.MultiheadAttention(12, 3, batch_first=True).double()
        torchs.load_state_dict(
            {name.replace("qkv_proj.", "in_proj_"): tensor for name, tensor in block.attention.state_dict().items()}
        )
        h = norm(x, block.attention_norm)
        x = x + torchs(h, h, h, attn_mask=torch.ones(7, 7).triu(1).bool(), need_weights=False)[0]
        x = x + block.mlp(norm(x, block.mlp_norm))
    logits = norm(x, model.final_norm) @ model.token_embedding.weight.T
    torch.testing.assert_close(model(ids), logits, rtol=1e-9, atol=1e-10)


@settings(deadline=None, max_examples=25)
@given(t=st.integers(2, 10), data=st.data(), seed=st.integers(0, 2**32))
def test_changing_a_token_changes_no_earlier_logit(t: int, data: st.DataObject, seed: int) -> None:
    at = data.draw(st.integers(0, t - 1))
    model, ids = double_model(seed=seed), some_ids(2, t, seed)
    changed = ids.clone()
    changed[:, at] = (changed[:, at] + 1) % CONFIG.vocab_size
    moved = (model(changed) - model(ids)).abs().amax(dim=-1)  # (B, T)
    assert (moved[:, :at] == 0).all()
    assert (moved[:, at:] > 0).all()


# The cache


def test_more_tokens_than_positions_are_an_error_with_both_numbers() -> None:
    model = GPT(CONFIG)
    with pytest.raises(ConfigError, match=r"11 positions are more than the model's context length \(10\)"):
        model(some_ids(1, 11))
    with pytest.raises(ConfigError, match=r"11 positions"):
        model.attention_weights(some_ids(1, 11))


# The traced forward pass


@pytest.mark.parametrize("attention_weights", [False, True])
def test_the_traced_forward_pass_gives_the_logits_and_gradients_of_the_forward_pass(attention_weights: bool) -> None:
    model, ids = double_model(), some_ids(2, 7)
    targets = some_ids(2, 7, seed=2).flatten()
    *_, last = model.trace(ids, attention_weights=attention_weights)
    logits = model(ids)
    torch.testing.assert_close(last.output, logits, rtol=1e-10, atol=1e-12)
    traced, expected = (
        torch.autograd.grad(F.cross_entropy(y.flatten(0, 1), targets), list(model.parameters()))
        for y in (last.output, logits)
    )
    for ours, theirs in zip(traced, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


# Dropout


@pytest.mark.parametrize("name", ["embedding_dropout", "blocks.1.attention", "blocks.1.mlp.residual_dropout"])
def test_dropout_acts_in_each_of_its_modules_and_only_in_train_mode(name: str) -> None:
    model, ids = double_model(CONFIG.replace(dropout=0.5)), some_ids(2, 7)
    model.eval()
    assert torch.equal(model(ids), model(ids))
    model.get_submodule(name).train()
    assert not torch.equal(model(ids), model(ids))


# A model from existing tensors


def test_a_model_from_tensors_shares_their_memory_and_draws_no_random_numbers() -> None:
    source, ids = double_model(), some_ids(2, 10)
    tensors = source.state_dict()
    before = torch.random.get_rng_state()
    model = GPT.from_tensors(CONFIG, tensors)
    assert torch.equal(torch.random.get_rng_state(), before)
    for name, parameter in model.named_parameters():
        assert parameter.data_ptr() == tensors[name].data_ptr(), name
        assert parameter.requires_grad
    assert torch.equal(model(ids), source(ids))
