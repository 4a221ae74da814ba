"""A fuzzing fixture that several importers' tests use."""

from collections.abc import Callable
from pathlib import Path

import pytest
from damage import mutations

from minigpt.errors import MinigptError

Fuzz = Callable[..., dict[str, int]]


@pytest.fixture
def fuzz() -> Fuzz:
    """`fuzz(file, read, count, seed=0)` replaces `file` by `count` damaged copies and calls `read()` after each.

    It returns how many were read and how many refused. Any exception but a MinigptError fails the test; the damaged
    file then stays for inspection.
    """

    def run(file: Path, read: Callable[[], object], count: int, seed: int = 0) -> dict[str, int]:
        whole = file.read_bytes()
        counts = {"read": 0, "refused": 0}
        lines: set[str] = set()
        for _, damaged in zip(range(count), mutations(whole, seed), strict=False):
            file.write_bytes(damaged)
            try:
                read()
                counts["read"] += 1
            except MinigptError as error:
                counts["refused"] += 1
                lines.update(str(error).splitlines()[1:])
        file.write_bytes(whole)
        assert not lines, "an error is one line"
        return counts

    return run
