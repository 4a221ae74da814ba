"""Fixtures for generation: drafts in every step, and each instruction set of the C code."""

from collections.abc import Callable, Iterator

import pytest

from minigpt.generation import decoding
from minigpt.generation.speculative import SpeedupMonitor
from minigpt.native import compiled


class AlwaysDraft(SpeedupMonitor):
    """As if drafting were always faster."""

    def should_draft(self) -> bool:
        return True

    def record(self, n_draft: int, n_tokens: int) -> None:
        pass


@pytest.fixture
def always_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "SpeedupMonitor", AlwaysDraft)


@pytest.fixture
def use() -> Iterator[Callable[[str], None]]:
    """Selects an instruction set until the end of the test."""
    library = compiled.library()
    assert library is not None

    def choose(name: str) -> None:
        assert compiled.use(library, name) == name

    yield choose
    compiled.use(library)
