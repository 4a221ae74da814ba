"""Samples have the requested size and are evenly spaced."""

from itertools import pairwise

import pytest

from minigpt.baselines.even_sample import even_blocks, even_sample


def test_blocks_add_up_to_the_requested_size_and_are_evenly_spaced() -> None:
    assert list(even_blocks(100, 200, 10)) == [(0, 100)]
    assert list(even_blocks(100, 30, 3)) == [(start, start + 3) for start in (0, 10, 21, 32, 43, 53, 64, 75, 86, 97)]
    blocks = list(even_blocks(360_010, 97_000, 65_536))  # one and a half blocks
    assert sum(end - start for start, end in blocks) == pytest.approx(97_000, rel=0.01)
    gaps = {after[0] - before[1] for before, after in pairwise(blocks)}
    assert max(gaps) - min(gaps) <= 1
    assert (blocks[0][0], blocks[-1][1]) == (0, 360_010)


def test_a_sample_has_the_requested_size_and_a_short_text_is_not_copied() -> None:
    text = bytes(range(256)) * 4096
    assert len(even_sample(text, 2**18)) == 2**18
    assert even_sample(text, len(text)) is text
