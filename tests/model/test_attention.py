"""The production attention: two paths that agree, a mask that holds, a cache that changes nothing."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minigpt.config import GPTConfig
from minigpt.errors import ConfigError
from minigpt.model import attention as attention_module
from minigpt.model.attention import CausalSelfAttention, KVCache, attend, check_room

CONFIG = GPTConfig(n_positions=9, n_embd=12, n_layer=2, n_head=3)
some_shapes = settings(deadline=None, max_examples=25)


def attention_in_double(config: GPTConfig = CONFIG, seed: int = 0) -> CausalSelfAttention:
    torch.manual_seed(seed)
    return CausalSelfAttention(config).double()


def stream(b: int, t: int, config: GPTConfig = CONFIG, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(b, t, config.n_embd, dtype=torch.float64, generator=generator)


def test_the_mask_is_a_boolean_buffer_outside_the_saved_state() -> None:
    attention = CausalSelfAttention(CONFIG)
    mask = dict(attention.named_buffers())["mask"]
    assert mask.dtype == torch.bool
    assert torch.equal(mask, torch.ones(9, 9).tril() == 1)
    assert sorted(attention.state_dict()) == ["out_proj.bias", "out_proj.weight", "qkv_proj.bias", "qkv_proj.weight"]


def test_the_mask_follows_the_module_to_its_device() -> None:
    assert CausalSelfAttention(CONFIG).to("meta").mask.device.type == "meta"


@some_shapes
@given(b=st.integers(1, 3), t=st.integers(1, 9), h=st.integers(1, 4), d=st.integers(1, 5), seed=st.integers(0, 2**32))
def test_the_fused_kernel_and_the_written_formula_agree(b: int, t: int, h: int, d: int, seed: int) -> None:
    config = GPTConfig(n_positions=9, n_embd=h * d, n_layer=1, n_head=h)
    fused, explicit = attention_in_double(config, seed), attention_in_double(config, seed)
    x, y = (stream(b, t, config, seed).requires_grad_() for _ in range(2))
    one, (other, _) = fused(x), explicit.forward_with_weights(y)
    torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)

    weights = stream(b, t, config, seed=2)
    (one * weights).sum().backward()
    (other * weights).sum().backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-9, atol=1e-11)
    for p, q in zip(fused.parameters(), explicit.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("written_out", [0, 512])
def test_bfloat16_on_a_cpu_is_float32_to_within_rounding_by_either_path(
    monkeypatch: pytest.MonkeyPatch, written_out: int, dropout: float
) -> None:
    monkeypatch.setattr(attention_module, "_WRITTEN_OUT", written_out)
    attention = CausalSelfAttention(CONFIG.replace(dropout=dropout))
    attention.eval()  # nothing is dropped, on either path
    x = stream(2, 7).float().requires_grad_()
    exact = attention(x)
    with torch.autocast("cpu", torch.bfloat16):
        coarse = attention(x)
    assert coarse.dtype == torch.bfloat16
    assert (coarse - exact).norm() / exact.norm() < 0.02
    wanted, got = (torch.autograd.grad(y.square().sum(), x)[0] for y in (exact, coarse))
    assert (got - wanted).norm() / wanted.norm() < 0.03
    changed = x.detach().clone()
    changed[:, -1] += 5
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(attention(changed)[:, :-1], coarse[:, :-1])


def test_rows_of_weights_sum_to_one_and_nothing_stands_above_the_diagonal() -> None:
    _, weights = attention_in_double().forward_with_weights(10 * stream(2, 7))
    assert weights.shape == (2, 3, 7, 7)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(2, 3, 7, dtype=torch.float64))
    assert not weights.triu(diagonal=1).any()
    assert (weights.tril().sum(dim=-2) > 0).all()
    assert len(torch.unique(weights[:, :, 6])) > 7  # not one pattern for every head


def test_the_formula_is_a_softmax_of_scaled_products() -> None:
    query, key = torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 5.0], [0.0, 7.0]])
    output, weights = attend(query, key, torch.eye(2), mask=None)
    likelier = 1 / (1 + math.exp(-2 / math.sqrt(2)))  # scores 2 and 0, over the root of two features
    torch.testing.assert_close(weights, torch.tensor([[likelier, 1 - likelier]]))
    torch.testing.assert_close(output, weights)


def test_heads_do_not_mix_before_the_output_projection() -> None:
    attention, x = attention_in_double(), stream(1, 5)
    _, before = attention.forward_with_weights(x)
    with torch.no_grad():
        attention.qkv_proj.weight[4:8] += 1  # the queries of head 1 (D = 4)
    _, after = attention.forward_with_weights(x)
    moved = (after - before).abs().amax(dim=(0, 2, 3))  # (H,)
    assert moved[1] > 0.01
    assert moved[0] == moved[2] == 0


@some_shapes
@given(t=st.integers(2, 9), data=st.data(), seed=st.integers(0, 2**32))
def test_changing_a_position_moves_it_and_later_ones_and_none_before(t: int, data: st.DataObject, seed: int) -> None:
    at = data.draw(st.integers(0, t - 1))
    attention, x = attention_in_double(seed=seed), stream(2, t, seed=seed)
    changed = x.clone()
    changed[:, at] += 1
    moved = (attention(changed) - attention(x)).abs().amax(dim=-1)  # (B, T)
    assert (moved[:, :at] == 0).all()
    assert (moved[:, at:] > 0).all()


@pytest.mark.parametrize("split", range(1, 9))
def test_cached_attention_equals_uncached_at_every_split(split: int) -> None:
    attention, x = attention_in_double(), stream(2, 9)
    cache = KVCache(CONFIG, 2, dtype=torch.float64)
    first = attention(x[:, :split], cache, layer=1)
    cache.length = split
    second = attention(x[:, split:], cache, layer=1)
    torch.testing.assert_close(torch.cat([first, second], dim=1), attention(x), rtol=1e-10, atol=1e-12)


def test_a_cache_keeps_its_layers_apart_and_lets_go_of_nothing_it_holds() -> None:
    cache = KVCache(CONFIG, 2)
    assert len(cache.keys) == len(cache.values) == CONFIG.n_layer
    assert cache.keys[0].shape == (2, 3, 9, 4)
    old, new = torch.randn(2, 3, 2, 4), torch.randn(2, 3, 1, 4)
    cache.append(0, old, -old)
    assert not cache.keys[1].any()
    assert not cache.values[1].any()
    cache.length = 2
    keys, values = cache.append(0, new, -new)
    assert torch.equal(keys, torch.cat([old, new], dim=2))
    assert torch.equal(values, -keys)


def test_a_reset_cache_starts_from_the_first_position() -> None:
    attention, x = attention_in_double(), stream(1, 4)
    cache = KVCache(CONFIG, 1, dtype=torch.float64)
    attention(10 * x, cache)
    cache.length = 4
    cache.reset()
    torch.testing.assert_close(attention(x, cache), attention(x))


@some_shapes
@given(padding=st.lists(st.integers(0, 5), min_size=1, max_size=4), split=st.integers(1, 9), seed=st.integers(0, 2**32))
def test_rows_of_different_lengths_attend_to_their_own_positions_alone(
    padding: list[int], split: int, seed: int
) -> None:
    attention, x = attention_in_double(seed=seed), stream(len(padding), 9, seed=seed)
    cache = KVCache(CONFIG, len(padding), dtype=torch.float64)
    cache.padding = torch.tensor(padding)
    first = attention(x[:, :split], cache)
    cache.length = split
    found = torch.cat([first, *(attention(part, cache) for part in (x[:, split:],) if split < 9)], dim=1)
    assert found.isfinite().all()
    for row, unused in enumerate(padding):
        expected = attention(x[row : row + 1, unused:])[0]
        torch.testing.assert_close(found[row, unused:], expected, rtol=1e-10, atol=1e-12)


def filled(rows: int, length: int, padding: list[int] | None = None) -> KVCache:
    """A cache that holds what no other row, layer or position does."""
    cache = KVCache(CONFIG, rows)
    for buffers in (cache.keys, cache.values):
        for layer in buffers:
            layer.copy_(torch.randn(layer.shape))
    cache.length = length
    cache.padding = None if padding is None else torch.tensor(padding)
    return cache


@pytest.mark.parametrize("order", [[2, 0], [1], [0, 1, 2], [2, 1, 0], [0, 0, 1, 2, 2], [1, 1, 1]], ids=str)
def test_rows_that_are_kept_hold_what_they_held(order: list[int]) -> None:
    cache = filled(3, 7)
    before = [[layer[order, :, :7].clone() for layer in buffers] for buffers in (cache.keys, cache.values)]
    cache.keep(order)
    assert cache.length == 7
    for buffers, held in zip((cache.keys, cache.values), before, strict=True):
        for layer, expected in zip(buffers, held, strict=True):
            assert layer.shape == (len(order), 3, 9, 4)
            assert layer.is_contiguous()
            assert torch.equal(layer[:, :, :7], expected)


@pytest.mark.parametrize(
    ("order", "length", "padding"),
    [([0, 1, 2], 8, [5, 0, 2]), ([2, 0], 6, [0, 3]), ([0], 3, None), ([0, 0], 3, None), ([2, 1, 2], 8, [2, 0, 2])],
)
def test_positions_that_no_row_has_any_longer_make_room(
    order: list[int], length: int, padding: list[int] | None
) -> None:
    cache = filled(3, 8, [5, 0, 2])
    before = [layer[order, :, 8 - length : 8].clone() for layer in cache.keys]
    cache.keep(order)
    assert cache.length == length
    assert (None if cache.padding is None else cache.padding.tolist()) == padding
    for layer, expected in zip(cache.keys, before, strict=True):
        assert torch.equal(layer[:, :, :length], expected)


def test_fewer_rows_stay_in_the_memory_that_there_is() -> None:
    cache = filled(3, 4)
    places = [layer.data_ptr() for layer in cache.keys + cache.values]
    cache.keep([2, 0])
    assert [layer.data_ptr() for layer in cache.keys + cache.values] == places


def test_a_row_of_a_cache_is_written_where_it_lies_and_leaves_the_others_alone() -> None:
    cache = filled(3, 5, [1, 0, 2])
    before = [layer.clone() for layer in cache.keys]
    row = cache.row(1)
    assert (row.length, row.padding) == (0, None)
    row.append(1, torch.ones(1, 3, 2, 4), torch.zeros(1, 3, 2, 4))
    row.length = 2
    assert (cache.keys[1][1, :, :2] == 1).all()
    assert (cache.values[1][1, :, :2] == 0).all()
    assert torch.equal(cache.keys[1][[0, 2]], before[1][[0, 2]])
    assert torch.equal(cache.keys[0], before[0])
    assert cache.length == 5
    assert cache.padding is not None


def test_a_reset_cache_forgets_its_padding_and_a_rewound_one_keeps_it() -> None:
    cache = filled(2, 5, [1, 0])
    cache.rewind(2)
    assert cache.length == 3
    assert cache.positions(2).tolist() == [[2, 3], [3, 4]]
    cache.reset()
    assert (cache.length, cache.padding) == (0, None)


def test_positions_count_from_each_rows_own_first() -> None:
    cache = filled(2, 0)
    assert cache.positions(3).tolist() == [0, 1, 2]
    cache.padding = torch.tensor([2, 0])
    assert cache.positions(4).tolist() == [[0, 0, 0, 1], [0, 1, 2, 3]]  # of what is padded nobody asks


def test_room_is_counted_from_what_the_cache_holds() -> None:
    cache = KVCache(CONFIG, 1)
    cache.length = 5
    assert check_room(4, cache, 9) == 5
    assert check_room(9, None, 9) == 0
    with pytest.raises(ConfigError, match=r"10 positions are more than the model's context length \(9\)"):
        check_room(5, cache, 9)


def test_dropout_falls_on_the_weights_in_both_paths_and_only_in_training() -> None:
    attention = attention_in_double(CONFIG.replace(dropout=0.5))
    attention.residual_dropout = torch.nn.Identity()  # leaves the dropout inside the attention alone
    x = stream(2, 8)
    assert not torch.equal(attention(x), attention(x))
    assert not torch.equal(attention.forward_with_weights(x)[0], attention.forward_with_weights(x)[0])

    _, dropped = attention.forward_with_weights(x)
    _, whole = attention.eval().forward_with_weights(x)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], 2 * whole[kept])
    share = kept.sum() / (whole != 0).sum()
    assert 0.3 < share < 0.7
    assert torch.equal(attention(x), attention(x))


def test_dropout_falls_on_the_output_too() -> None:
    attention = attention_in_double(CONFIG.replace(dropout=0.5))
    zeros = (attention(stream(8, 9)) == 0).double().mean().item()
    assert zeros == pytest.approx(0.5, abs=0.1)
