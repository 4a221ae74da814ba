"""A fixture for the C code: each of its instruction sets."""

from collections.abc import Callable, Iterator

import pytest

from minigpt.native import compiled


@pytest.fixture
def use() -> Iterator[Callable[[str], None]]:
    """Selects an instruction set until the end of the test."""
    library = compiled.library()
    assert library is not None

    def choose(name: str) -> None:
        assert compiled.use(library, name) == name

    yield choose
    compiled.use(library)
