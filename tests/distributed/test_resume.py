"""`minigpt train --resume` with other numbers of processes."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from minigpt.distributed.process_group import JoinedWorld
from minigpt.errors import ConfigError

FOX = Path("checkpoints/fox")


@pytest.fixture
def fox(finished: Path, here: Path) -> None:
    """A copy of that finished run in the current folder."""
    shutil.copytree(finished / "checkpoints", here / "checkpoints")


def everything() -> dict[str, bytes]:
    return {
        str(path): path.read_bytes() for path in FOX.rglob("*") if path.is_file() and not path.name.startswith(".lock")
    }


def test_more_processes_than_sequences_in_a_batch_are_refused_and_the_run_stays_unchanged(
    run: Any, fox: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Five(JoinedWorld):
        size = 5

        def rows(self, batch_size: int) -> range:
            raise ConfigError("seen too late")

    stood = everything()
    monkeypatch.setattr("minigpt.distributed.process_group.init_world", lambda: Five())
    monkeypatch.setenv("WORLD_SIZE", "5")
    result = run("train", "--resume", "--steps", "9")
    assert result.exit_code == 1
    assert "--batch-size (4) must be at least the number of processes (5)" in result.stderr
    assert everything() == stood
