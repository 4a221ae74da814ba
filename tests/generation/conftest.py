"""A fixture for generation: drafts in every step."""

import pytest
from drafting import AlwaysDraft

from minigpt.generation import decoding


@pytest.fixture
def always_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "SpeedupMonitor", AlwaysDraft)
