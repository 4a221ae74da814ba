"""Token noise: which inputs are replaced, and by what."""

import pytest
import torch

from minigpt.tricks.batches import add_noise


def test_noise_replaces_tokens_by_uniformly_random_ones():
    noisy = add_noise(torch.zeros(32, 50, dtype=torch.int64), 0.25, 10, step=3, size=32, seed=7)
    counts = torch.bincount(noisy.flatten(), minlength=10)
    assert len(counts) == 10
    assert counts[1:].sum() == pytest.approx(0.25 * 0.9 * 1600, rel=0.15)
    assert (counts[1:] > 20).all()  # the expected count is 40


def test_noise_differs_between_steps_and_is_the_same_however_rows_are_divided():
    inputs = torch.arange(60).view(6, 10)
    first, again = (add_noise(inputs, 0.3, 60, step, 6, seed=1) for step in (0, 1))
    assert not torch.equal(first, again)
    parts = [
        add_noise(inputs[rows.start : rows.stop], 0.3, 60, 0, 6, 1, rows)
        for rows in (range(2), range(2, 5), range(5, 6))
    ]
    assert torch.equal(torch.cat(parts), first)
    assert add_noise(inputs[:0], 0.3, 60, 0, 6, 1, range(0)).shape == (0, 10)
