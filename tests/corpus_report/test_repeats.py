"""Shared and repeated windows of bytes, against brute force."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.corpus_report import repeats
from minigpt.corpus_report.repeats import find_overlap, find_repeat

FEW_LETTERS = st.lists(st.sampled_from(b"\0b"), max_size=50).map(bytes)


def longest_repeat(text: bytes) -> int:
    for length in range(len(text) - 1, 0, -1):
        windows = [text[i : i + length] for i in range(len(text) - length + 1)]
        if len(set(windows)) < len(windows):
            return length
    return 0


@settings(deadline=None, max_examples=150)
@given(text=FEW_LETTERS)
def test_the_longest_repeat_equals_that_of_brute_force(text: bytes) -> None:
    repeat, longest = find_repeat(text, 3), longest_repeat(text)
    if longest < 3:
        assert repeat is None
        return
    assert repeat is not None
    assert repeat.length == longest
    assert repeat.first < repeat.second
    assert text[repeat.first :][:longest] == text[repeat.second :][:longest]
    windows = [text[i : i + 3] for i in range(len(text) - 2)]
    assert (repeat.windows, repeat.repeated) == (len(windows), sum(windows.count(window) > 1 for window in windows))


@settings(deadline=None, max_examples=60)
@given(text=st.lists(st.sampled_from(b"\0b|"), max_size=40).map(bytes), other=FEW_LETTERS, at=st.integers(0, 50))
def test_the_overlap_equals_that_of_brute_force(text: bytes, other: bytes, at: int) -> None:
    overlap = find_overlap(text, [other[:at], other[at:]], ord("|"), length=4)
    windows = [text[i : i + 4] for i in range(len(text) - 3)]
    shared = [b"|" not in window and window in other for window in windows]
    assert overlap.windows == sum(b"|" not in window for window in windows)
    assert overlap.shared == sum(shared)
    runs = "".join("x" if is_shared else " " for is_shared in shared).split()
    assert overlap.length == max((len(run) + 3 for run in runs), default=0)
    if runs:
        assert all(shared[overlap.start : overlap.start + overlap.length - 3])


@pytest.mark.parametrize("block", [64, 2**22])
def test_a_planted_passage_is_found_at_both_locations(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(repeats, "MOST_BYTES", block)
    text = random.Random(0).randbytes(20_000)
    planted = text[3000:3777]
    text = text[:15_000] + planted + text[15_000:]
    repeat = find_repeat(text)
    assert repeat is not None
    assert (repeat.length, repeat.first, repeat.second) == (777, 3000, 15_000)
    overlap = find_overlap(text[14_000:17_000], [text[:3400], text[3400:9000]], boundary=256)
    assert (overlap.start, overlap.length, overlap.shared) == (1000, 777, 777 - 49)


def test_a_text_repeated_as_a_whole_is_one_repeat_of_its_length() -> None:
    text = random.Random(1).randbytes(100_000)
    repeat = find_repeat(text + b"!" + text)
    assert repeat is not None
    assert (repeat.length, repeat.first, repeat.second) == (100_000, 0, 100_001)
