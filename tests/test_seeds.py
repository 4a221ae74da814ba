"""Counter-based random numbers: they never change, and neighboring inputs give unrelated outputs."""

import numpy as np
import pytest

from minigpt.seeds import mix_seed, splitmix64


def test_mixed_seeds_do_not_change_between_versions() -> None:
    """A resumed run computes its batches from the seed, so a change would give old runs other batches."""
    assert mix_seed(0) == 0xE220A8397B1DCDAF >> 1  # splitmix64's first published output for the seed 0
    assert [mix_seed(1337, step) for step in (0, 1)] == [1783029923428753473, 8361222471251455951]
    assert [mix_seed(1, 2, 3), mix_seed(-1), mix_seed(2**63, 5)] == [
        7510213797696614745, 8245168133484221968, 541951057487028235
    ]  # fmt: skip


def test_mixed_numbers_do_not_change_between_versions() -> None:
    numbers = np.array([0, 1, 1337, 2**63, 2**64 - 1], dtype=np.uint64)
    assert splitmix64(numbers).tolist() == [
        0xE220A8397B1DCDAF, 7960286522194355700, 9929270050038472507, 5196802822362493915, 0
    ]  # fmt: skip


def test_mixing_an_array_equals_mixing_seeds_of_one_part() -> None:
    step = 0x9E3779B97F4A7C15  # the increment of splitmix64
    for index in (0, 1, 77):
        (number,) = splitmix64(np.array([index], dtype=np.uint64)).tolist()
        assert number >> 1 == mix_seed(index * step)


def test_the_seeds_of_neighboring_steps_share_half_of_their_bits() -> None:
    changed = [(mix_seed(7, step) ^ mix_seed(7, step + 1)).bit_count() for step in range(500)]
    assert sum(changed) / len(changed) == pytest.approx(63 / 2, abs=1)
    assert min(changed) > 10
