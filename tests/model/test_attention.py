"""GPT-2's attention: equal results by the formula, by the fused kernel and with a cache, and a causal mask."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minigpt.config import GPTConfig
from minigpt.errors import ConfigError
from minigpt.model.attention import CausalSelfAttention, attend, check_length
from minigpt.model.kv_cache import KVCache

CONFIG = GPTConfig(n_positions=9, n_embd=12, n_layer=2, n_head=3)
some_shapes = settings(deadline=None, max_examples=25)


def new_attention(config: GPTConfig = CONFIG, seed: int = 0) -> CausalSelfAttention:
    torch.manual_seed(seed)
    return CausalSelfAttention(config).double()


def random_input(b: int, t: int, config: GPTConfig = CONFIG, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(b, t, config.n_embd, dtype=torch.float64, generator=generator)


def test_the_mask_is_a_boolean_buffer_that_is_not_saved() -> None:
    attention = CausalSelfAttention(CONFIG)
    mask = dict(attention.named_buffers())["mask"]
    assert mask.dtype == torch.bool
    assert torch.equal(mask, torch.ones(9, 9).tril() == 1)
    assert sorted(attention.state_dict()) == ["out_proj.bias", "out_proj.weight", "qkv_proj.bias", "qkv_proj.weight"]


def test_the_mask_follows_the_module_to_its_device() -> None:
    assert CausalSelfAttention(CONFIG).to("meta").mask.device.type == "meta"


@some_shapes
@given(b=st.integers(1, 3), t=st.integers(1, 9), h=st.integers(1, 4), d=st.integers(1, 5), seed=st.integers(0, 2**32))
def test_the_fused_kernel_and_the_formula_give_equal_outputs_and_gradients(
    b: int, t: int, h: int, d: int, seed: int
) -> None:
    config = GPTConfig(n_positions=9, n_embd=h * d, n_layer=1, n_head=h)
    fused, explicit = new_attention(config, seed), new_attention(config, seed)
    x, y = (random_input(b, t, config, seed).requires_grad_() for _ in range(2))
    by_kernel, (by_formula, _) = fused(x), explicit.forward_with_weights(y)
    torch.testing.assert_close(by_kernel, by_formula, rtol=1e-10, atol=1e-12)

    weights = random_input(b, t, config, seed=2)
    (by_kernel * weights).sum().backward()
    (by_formula * weights).sum().backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-9, atol=1e-11)
    for p, q in zip(fused.parameters(), explicit.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-9, atol=1e-11)


def test_rows_of_weights_sum_to_one_and_are_zero_above_the_diagonal() -> None:
    _, weights = new_attention().forward_with_weights(10 * random_input(2, 7))
    assert weights.shape == (2, 3, 7, 7)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(2, 3, 7, dtype=torch.float64))
    assert not weights.triu(diagonal=1).any()
    assert (weights.tril().sum(dim=-2) > 0).all()
    assert len(torch.unique(weights[:, :, 6])) > 7  # the heads have different patterns


def test_the_formula_is_a_softmax_of_scaled_products() -> None:
    query, key = torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 5.0], [0.0, 7.0]])
    output, weights = attend(query, key, torch.eye(2), mask=None)
    likelier = 1 / (1 + math.exp(-2 / math.sqrt(2)))  # scores 2 and 0, divided by the square root of 2 features
    torch.testing.assert_close(weights, torch.tensor([[likelier, 1 - likelier]]))
    torch.testing.assert_close(output, weights)


def test_heads_do_not_mix_before_the_output_projection() -> None:
    attention, x = new_attention(), random_input(1, 5)
    _, before = attention.forward_with_weights(x)
    with torch.no_grad():
        attention.qkv_proj.weight[4:8] += 1  # the queries of head 1 (D = 4)
    _, after = attention.forward_with_weights(x)
    moved = (after - before).abs().amax(dim=(0, 2, 3))  # (H,)
    assert moved[1] > 0.01
    assert moved[0] == moved[2] == 0


@some_shapes
@given(t=st.integers(2, 9), data=st.data(), seed=st.integers(0, 2**32))
def test_changing_a_position_changes_its_output_and_later_ones_but_no_earlier_one(
    t: int, data: st.DataObject, seed: int
) -> None:
    at = data.draw(st.integers(0, t - 1))
    attention, x = new_attention(seed=seed), random_input(2, t, seed=seed)
    changed = x.clone()
    changed[:, at] += 1
    moved = (attention(changed) - attention(x)).abs().amax(dim=-1)  # (B, T)
    assert (moved[:, :at] == 0).all()
    assert (moved[:, at:] > 0).all()


@pytest.mark.parametrize("split", range(1, 9))
def test_cached_attention_equals_uncached_at_every_split(split: int) -> None:
    attention, x = new_attention(), random_input(2, 9)
    cache = KVCache(CONFIG, 2, dtype=torch.float64)
    first = attention(x[:, :split], cache.layers[1])
    second = attention(x[:, split:], cache.layers[1])
    torch.testing.assert_close(torch.cat([first, second], dim=1), attention(x), rtol=1e-10, atol=1e-12)


@some_shapes
@given(padding=st.lists(st.integers(0, 5), min_size=1, max_size=4), split=st.integers(1, 9), seed=st.integers(0, 2**32))
def test_rows_of_different_lengths_attend_to_their_own_positions_only(
    padding: list[int], split: int, seed: int
) -> None:
    attention, x = new_attention(seed=seed), random_input(len(padding), 9, seed=seed)
    cache = KVCache(CONFIG, len(padding), dtype=torch.float64)
    cache.padding = torch.tensor(padding)
    parts = [part for part in x.split([split, 9 - split], dim=1) if part.shape[1]]
    found = torch.cat([attention(part, cache.layers[0]) for part in parts], dim=1)
    assert found.isfinite().all()
    for row, unused in enumerate(padding):
        expected = attention(x[row : row + 1, unused:])[0]
        torch.testing.assert_close(found[row, unused:], expected, rtol=1e-10, atol=1e-12)


def test_dropout_applies_to_the_weights_by_kernel_and_by_formula_and_only_in_training() -> None:
    attention = new_attention(CONFIG.replace(dropout=0.5))
    attention.residual_dropout = torch.nn.Identity()  # so that only the weights have dropout
    x = random_input(2, 8)
    assert not torch.equal(attention(x), attention(x))
    assert not torch.equal(attention.forward_with_weights(x)[0], attention.forward_with_weights(x)[0])

    _, dropped = attention.forward_with_weights(x)
    _, complete = attention.eval().forward_with_weights(x)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], 2 * complete[kept])
    fraction = kept.sum() / (complete != 0).sum()
    assert 0.3 < fraction < 0.7
    assert torch.equal(attention(x), attention(x))


def test_dropout_applies_to_the_output_too() -> None:
    attention = new_attention(CONFIG.replace(dropout=0.5))
    zeros = (attention(random_input(8, 9)) == 0).double().mean().item()
    assert zeros == pytest.approx(0.5, abs=0.1)


def test_a_longer_sequence_than_the_context_is_an_error() -> None:
    check_length(9, 9)
    with pytest.raises(ConfigError, match=r"10 positions are more than the model's context length \(9\)"):
        check_length(10, 9)
