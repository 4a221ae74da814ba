"""The run of an adapter that is killed at any instant ends exactly like an uninterrupted one."""

import sys

import pytest
from killing import Forker, assert_survives_kills_in_writes, assert_survives_random_kills, forker

__all__ = ["forker"]  # a fixture

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has neither fork nor SIGKILL")
KIND = {
    "optimizer": "adamw", "lora": True, "lora_rank": 3, "lora_dropout": 0.1, "lora_embedding": True,
    "token_noise": 0.1, "bpe_dropout": 0.2,
}  # fmt: skip


@pytest.mark.parametrize("kills", [3, pytest.param(50, marks=pytest.mark.slow)])
def test_a_run_of_an_adapter_killed_at_random_moments_equals_an_uninterrupted_one(forker: Forker, kills: int) -> None:
    assert_survives_random_kills(forker, KIND, kills)


@pytest.mark.parametrize("every", [29, pytest.param(1, marks=pytest.mark.slow)])
def test_a_run_of_an_adapter_killed_in_any_call_that_writes_to_disk_equals_an_uninterrupted_one(
    forker: Forker, every: int
) -> None:
    assert_survives_kills_in_writes(forker, KIND, every)
