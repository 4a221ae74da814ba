"""A run that is killed at any instant and resumed ends exactly like an uninterrupted one."""

import sys
from typing import get_args, get_type_hints

import pytest
from killing import (
    SETTINGS,
    SHORT,
    Forker,
    assert_same,
    assert_survives_kills_in_writes,
    assert_survives_random_kills,
    forker,
    kept,
)

from minigpt.config import TrainConfig

__all__ = ["forker"]  # a fixture

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has neither fork nor SIGKILL")
OPTIMIZERS = get_args(get_type_hints(TrainConfig)["optimizer"])


@pytest.mark.parametrize("kills", [3, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_run_killed_at_random_moments_equals_an_uninterrupted_one(forker: Forker, optimizer: str, kills: int) -> None:
    assert_survives_random_kills(forker, {"optimizer": optimizer}, kills)


@pytest.mark.parametrize("every", [29, pytest.param(1, marks=pytest.mark.slow)])
def test_a_run_killed_in_any_call_that_writes_to_disk_equals_an_uninterrupted_one(forker: Forker, every: int) -> None:
    assert_survives_kills_in_writes(forker, {}, every)


@pytest.mark.slow
def test_a_resumed_run_killed_in_any_of_its_first_writes_equals_an_uninterrupted_one(forker: Forker) -> None:
    whole, settings = forker.new(), SETTINGS | SHORT
    half = forker.train(whole, settings)["calls"] // 2
    uninterrupted = kept(whole)
    for call in range(1, 20):
        run = forker.new()
        for end_in in (half, call):
            assert forker.train(run, settings, end_in=end_in)["killed"]
        forker.train(run, settings)
        assert_same(run, uninterrupted)
