"""Sorted suffixes and the longest match, against sorting and searching by hand."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.evaluation.memorization.suffix_array import build_suffix_array, find_longest_prefix

SEQUENCES = st.lists(st.integers(0, 2), max_size=60)


@given(SEQUENCES)
@settings(deadline=None, max_examples=150)
def test_suffixes_are_in_the_order_that_comparing_them_whole_gives(ids: list[int]) -> None:
    assert build_suffix_array(np.array(ids, np.int32)).tolist() == sorted(
        range(len(ids)), key=lambda place: ids[place:]
    )


@given(SEQUENCES, st.lists(st.integers(-1, 2), max_size=60))
@settings(deadline=None, max_examples=150)
def test_the_longest_match_is_the_one_that_trying_every_place_finds(ids: list[int], query: list[int]) -> None:
    match = find_longest_prefix(np.array(ids, np.int32), build_suffix_array(np.array(ids, np.int32)), query)
    places = [[place for place in range(len(ids)) if ids[place : place + length] == query[:length]]
              for length in range(1, min(len(ids), len(query)) + 1)]  # fmt: skip
    occurring = [found for found in places if found]
    assert match.length == len(occurring)
    if occurring:
        assert match.position == min(occurring[-1])
        assert match.occurrences == len(occurring[-1])


def test_a_match_longer_than_the_first_look_is_found_whole() -> None:
    ids = np.random.default_rng(0).integers(0, 50, 3000).astype(np.int32)
    match = find_longest_prefix(ids, build_suffix_array(ids), [*ids[1000:1250].tolist(), 99, 1, 2])
    assert (match.length, match.position, match.occurrences) == (250, 1000, 1)


def test_a_sequence_of_one_number_repeated_is_sorted_too() -> None:
    ids = np.zeros(5000, np.int32)
    assert build_suffix_array(ids).tolist() == list(range(4999, -1, -1))
    match = find_longest_prefix(ids, build_suffix_array(ids), [0] * 70)
    assert (match.length, match.position, match.occurrences) == (70, 0, 4931)
