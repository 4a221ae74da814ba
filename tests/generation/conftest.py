"""A fixture for generation: drafts in every step."""

import pytest

from minigpt.generation import decoding
from minigpt.generation.speculative import SpeedupMonitor


class AlwaysDraft(SpeedupMonitor):
    """As if drafting were always faster."""

    def should_draft(self) -> bool:
        return True

    def record(self, n_draft: int, n_tokens: int) -> None:
        pass


@pytest.fixture
def always_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "SpeedupMonitor", AlwaysDraft)
