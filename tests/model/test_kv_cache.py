"""The key/value cache: its content after appending, rewinding, and keeping or reordering rows."""

import pytest
import torch

from minigpt.config import GPTConfig
from minigpt.model.attention import CausalSelfAttention
from minigpt.model.kv_cache import KVCache

CONFIG = GPTConfig(n_positions=9, n_embd=12, n_layer=2, n_head=3)


def random_cache(rows: int, length: int, padding: list[int] | None = None) -> KVCache:
    """A cache with a different value at every row, layer and position."""
    cache = KVCache(CONFIG, rows)
    for layer in cache.layers:
        layer.keys.copy_(torch.randn(layer.keys.shape))
        layer.values.copy_(torch.randn(layer.values.shape))
    cache.length = length
    cache.padding = None if padding is None else torch.tensor(padding)
    return cache


def test_appending_to_a_layer_keeps_its_earlier_positions_and_the_other_layers() -> None:
    cache = KVCache(CONFIG, 2)
    assert len(cache.layers) == CONFIG.n_layer
    assert cache.batch_size == 2
    first, second = cache.layers
    assert first.keys.shape == first.values.shape == (2, 3, 9, 4)
    old, new = torch.randn(2, 3, 2, 4), torch.randn(2, 3, 1, 4)
    first.append(old, -old)
    assert (first.length, second.length) == (2, 0)
    assert not second.keys.any()
    assert not second.values.any()
    keys, values = first.append(new, -new)
    assert torch.equal(keys, torch.cat([old, new], dim=2))
    assert torch.equal(values, -keys)
    assert first.length == 3


def test_a_reset_cache_starts_from_the_first_position() -> None:
    torch.manual_seed(0)
    attention, x = CausalSelfAttention(CONFIG).double(), torch.randn(1, 4, 12, dtype=torch.float64)
    cache = KVCache(CONFIG, 1, dtype=torch.float64)
    attention(10 * x, cache.layers[0])
    cache.reset()
    torch.testing.assert_close(attention(x, cache.layers[0]), attention(x))


@pytest.mark.parametrize("order", [[2, 0], [1], [0, 1, 2], [2, 1, 0], [0, 0, 1, 2, 2], [1, 1, 1]], ids=str)
def test_kept_rows_have_the_same_keys_and_values_as_before(order: list[int]) -> None:
    cache = random_cache(3, 7)
    before = [(layer.keys[order, :, :7].clone(), layer.values[order, :, :7].clone()) for layer in cache.layers]
    cache.keep(order)
    assert cache.length == 7
    for layer, expected in zip(cache.layers, before, strict=True):
        for buffer, used in zip((layer.keys, layer.values), expected, strict=True):
            assert buffer.shape == (len(order), 3, 9, 4)
            assert buffer.is_contiguous()
            assert torch.equal(buffer[:, :, :7], used)


@pytest.mark.parametrize(
    ("order", "length", "padding"),
    [([0, 1, 2], 8, [5, 0, 2]), ([2, 0], 6, [0, 3]), ([0], 3, None), ([0, 0], 3, None), ([2, 1, 2], 8, [2, 0, 2])],
)
def test_positions_that_are_padding_in_every_kept_row_are_dropped(
    order: list[int], length: int, padding: list[int] | None
) -> None:
    cache = random_cache(3, 8, [5, 0, 2])
    before = [layer.keys[order, :, 8 - length : 8].clone() for layer in cache.layers]
    cache.keep(order)
    assert cache.length == length
    assert (None if cache.padding is None else cache.padding.tolist()) == padding
    for layer, expected in zip(cache.layers, before, strict=True):
        assert torch.equal(layer.keys[:, :, :length], expected)


def addresses(cache: KVCache) -> list[int]:
    return [buffer.data_ptr() for layer in cache.layers for buffer in (layer.keys, layer.values)]


def test_fewer_rows_stay_in_the_same_memory() -> None:
    cache = random_cache(3, 4)
    before = addresses(cache)
    cache.keep([2, 0])
    assert addresses(cache) == before


def test_the_cache_of_one_row_writes_to_the_memory_of_that_row_only() -> None:
    cache = random_cache(3, 5, [1, 0, 2])
    before = [layer.keys.clone() for layer in cache.layers]
    row = cache.row(1)
    assert (row.length, row.padding) == (0, None)
    row.layers[1].append(torch.ones(1, 3, 2, 4), torch.zeros(1, 3, 2, 4))
    assert row.length == 2
    assert (cache.layers[1].keys[1, :, :2] == 1).all()
    assert (cache.layers[1].values[1, :, :2] == 0).all()
    assert torch.equal(cache.layers[1].keys[[0, 2]], before[1][[0, 2]])
    assert torch.equal(cache.layers[0].keys, before[0])
    assert cache.length == 5
    assert cache.padding is not None


def test_rewinding_keeps_the_padding_and_resetting_drops_it() -> None:
    cache = random_cache(2, 5, [1, 0])
    cache.rewind(2)
    assert cache.length == 3
    assert cache.positions(2).tolist() == [[2, 3], [3, 4]]
    cache.reset()
    assert (cache.length, cache.padding) == (0, None)


def test_positions_count_from_the_first_position_of_each_row() -> None:
    cache = random_cache(2, 0)
    assert cache.positions(3).tolist() == [0, 1, 2]
    cache.padding = torch.tensor([2, 0])
    assert cache.positions(4).tolist() == [[0, 0, 0, 1], [0, 1, 2, 3]]  # the position of padding is never used
