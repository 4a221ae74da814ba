"""What holds for every test."""

import pytest


@pytest.fixture(autouse=True)
def _plans_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans choose float32: which dtype is faster depends on the moment, and runs that are compared need the same."""
    monkeypatch.setattr("minigpt.device.multiplies_bfloat16_faster", lambda: False)
