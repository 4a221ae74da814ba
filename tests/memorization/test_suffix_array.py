"""The suffix array and the longest prefix, against sorting and searching by brute force."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.memorization.suffix_array import build_suffix_array, find_longest_prefix

SEQUENCES = st.lists(st.integers(0, 2), max_size=60)


@given(SEQUENCES)
@settings(deadline=None, max_examples=150)
def test_suffixes_are_sorted_as_by_direct_comparison(ids: list[int]) -> None:
    assert build_suffix_array(np.array(ids, np.int32)).tolist() == sorted(
        range(len(ids)), key=lambda position: ids[position:]
    )


@given(SEQUENCES, st.lists(st.integers(-1, 2), max_size=60))
@settings(deadline=None, max_examples=150)
def test_the_longest_prefix_equals_that_of_brute_force(ids: list[int], query: list[int]) -> None:
    match = find_longest_prefix(np.array(ids, np.int32), build_suffix_array(np.array(ids, np.int32)), query)
    positions = [[position for position in range(len(ids)) if ids[position : position + length] == query[:length]]
              for length in range(1, min(len(ids), len(query)) + 1)]  # fmt: skip
    occurring = [found for found in positions if found]
    assert match.length == len(occurring)
    if occurring:
        assert match.position == min(occurring[-1])
        assert match.occurrences == len(occurring[-1])


def test_a_match_longer_than_the_first_comparison_is_found() -> None:
    ids = np.random.default_rng(0).integers(0, 50, 3000).astype(np.int32)
    match = find_longest_prefix(ids, build_suffix_array(ids), [*ids[1000:1250].tolist(), 99, 1, 2])
    assert (match.length, match.position, match.occurrences) == (250, 1000, 1)
