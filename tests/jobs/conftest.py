"""A folder for training jobs, on a tiny text, with its own cache."""

from pathlib import Path

import pytest

TEXT = "the quick brown fox jumps over the lazy dog; " * 60


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, which holds fox.txt and corpus.txt."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINIGPT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.delenv("MINIGPT_CHECKPOINTS", raising=False)
    monkeypatch.setattr("minigpt.autoplan.planner.OtherPrograms.cores", lambda _: 0.0)  # a plan notes a busy machine
    for name in ("fox.txt", "corpus.txt"):
        (tmp_path / name).write_text(TEXT)
    return tmp_path
