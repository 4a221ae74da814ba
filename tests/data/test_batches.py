"""Batches: the tokens that each training step reads."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.data.batches import inputs_and_targets, windows, windows_per_epoch

GOLDEN = [20, 748, 196, 132]  # recorded from the first version
SIZES = st.integers(1, 60), st.integers(1, 20), st.integers(1, 7), st.integers(0, 2**63 - 1)


def batch(tokens, step, size, length, seed, rows=None):
    """The inputs and targets of one step."""
    return inputs_and_targets(windows(tokens, step, size, length, seed, rows))


def epoch_of(tokens, length, seed, epoch=0):
    """The inputs of one whole epoch, one sequence per step."""
    windows = windows_per_epoch(len(tokens), length)
    steps = range(epoch * windows, (epoch + 1) * windows)
    return torch.cat([batch(tokens, step, 1, length, seed)[0] for step in steps])


@given(*SIZES, st.integers(0, 10**12))
@settings(deadline=None, max_examples=50)
def test_a_batch_depends_on_seed_and_step_alone(n_tokens, length, size, seed, step):
    tokens = np.arange(n_tokens, dtype=np.uint16)
    first = batch(tokens, step, size, length, seed)
    batch(tokens, step + 1, size, length, seed + 1)
    second = batch(tokens, step, size, length, seed)
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])


@given(*SIZES)
@settings(deadline=None, max_examples=50)
def test_targets_are_the_inputs_shifted_by_one_around_the_ring(n_tokens, length, size, seed):
    inputs, targets = batch(np.arange(n_tokens, dtype=np.uint16), 3, size, length, seed)
    assert inputs.shape == targets.shape == (size, length)
    assert inputs.dtype == targets.dtype == torch.int64
    assert torch.equal(targets, (inputs + 1) % n_tokens)


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 100), st.integers(0, 3))
@settings(deadline=None, max_examples=50)
def test_an_epoch_visits_every_position_once_when_the_length_divides_the_tokens(windows, length, seed, epoch):
    tokens = np.arange(windows * length, dtype=np.uint16)
    assert sorted(epoch_of(tokens, length, seed, epoch).flatten().tolist()) == list(range(windows * length))


@given(st.integers(1, 200), st.integers(1, 20), st.integers(0, 100))
@settings(deadline=None, max_examples=50)
def test_the_windows_of_an_epoch_never_overlap_and_omit_less_than_one_window(n_tokens, length, seed):
    seen = epoch_of(np.arange(n_tokens, dtype=np.uint16), min(length, n_tokens), seed).flatten().tolist()
    assert len(set(seen)) == len(seen) > n_tokens - length


@given(*SIZES, st.integers(0, 7), st.integers(0, 7))
@settings(deadline=None, max_examples=50)
def test_parts_of_the_rows_join_to_the_whole_batch(n_tokens, length, size, seed, first, second):
    tokens = np.arange(n_tokens, dtype=np.uint16)
    low, high = sorted((min(first, size), min(second, size)))
    whole = batch(tokens, 5, size, length, seed)
    parts = [batch(tokens, 5, size, length, seed, rows) for rows in (range(low), range(low, high), range(high, size))]
    for side in (0, 1):
        assert torch.equal(torch.cat([part[side] for part in parts]), whole[side])


def test_a_batch_continues_from_one_epoch_into_the_next():
    tokens = np.arange(40, dtype=np.uint16)  # 4 windows, so that 6 rows are one epoch and a half
    rows = torch.cat([batch(tokens, step, 6, 10, seed=1)[0] for step in range(2)])
    assert torch.equal(rows, torch.cat([epoch_of(tokens, 10, 1, epoch) for epoch in range(3)]))


def test_epochs_differ_in_their_order_and_in_where_their_windows_start():
    tokens = np.arange(1000, dtype=np.uint16)
    first, second = (epoch_of(tokens, 10, 1, epoch)[:, 0] for epoch in range(2))
    assert first[0] % 10 != second[0] % 10
    assert not torch.equal((first - first.min()).argsort(), (second - second.min()).argsort())


def test_a_corpus_shorter_than_the_context_wraps_around():
    inputs, targets = batch(np.array([7, 8, 9], dtype=np.uint16), 0, 1, 8, seed=0)
    start = inputs[0, 0].item() - 7
    assert inputs[0].tolist() == [7 + (start + j) % 3 for j in range(8)]
    assert targets[0].tolist() == [7 + (start + 1 + j) % 3 for j in range(8)]


def test_the_order_never_changes_so_that_old_runs_resume():
    inputs, _ = batch(np.arange(1000, dtype=np.uint32), 7, 4, 16, seed=1337)
    assert inputs[:, 0].tolist() == GOLDEN


@pytest.mark.parametrize(("n_tokens", "length", "windows"), [(100, 10, 10), (109, 10, 10), (9, 10, 1), (1, 1, 1)])
def test_windows_per_epoch_counts_complete_windows_and_is_at_least_one(n_tokens, length, windows):
    assert windows_per_epoch(n_tokens, length) == windows


def test_windows_include_the_requested_lookahead():
    tokens = np.arange(50, dtype=np.uint16)
    near, far = (windows(tokens, 3, 4, 10, seed=1, lookahead=lookahead) for lookahead in (1, 7))
    assert far.shape == (4, 17)
    assert (far[:, :11] == near).all()
    assert (far[:, 1:] == (far[:, :-1] + 1) % 50).all()
