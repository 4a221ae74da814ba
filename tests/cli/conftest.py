"""Fixtures that run the command line in this process, in a temporary folder with its own cache."""

from collections.abc import Callable
from pathlib import Path

import pytest
from builders import finished_run
from click.testing import Result
from typer.testing import CliRunner

from minigpt.cli.app import app

TEXT = "the quick brown fox jumps over the lazy dog; " * 60
TINY = ["--n-layer", "1", "--n-head", "2", "--n-embd", "16", "--context-length", "16", "--batch-size", "4",
        "--tokenizer", "bytes", "--steps", "6", "--eval-every", "3", "--device", "cpu",
        "--dtype", "float32"]  # fmt: skip

Run = Callable[..., Result]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, a temporary folder that holds fox.txt."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINIGPT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("MINIGPT_CHECKPOINTS", raising=False)
    monkeypatch.setattr(
        "minigpt.shared_cores.load_monitor.OtherPrograms.cores", lambda _: 0.0
    )  # a plan notes a busy machine
    (tmp_path / "fox.txt").write_text(TEXT)
    return tmp_path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a run of six steps, `checkpoints/fox`, has finished."""
    folder = tmp_path_factory.mktemp("finished")
    finished_run(folder)
    return folder


@pytest.fixture
def run(here: Path) -> Run:
    """Runs `minigpt` with these arguments."""

    def call(*arguments: str, stdin: str | bytes | None = None) -> Result:
        result = CliRunner().invoke(app, list(arguments), input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return call


@pytest.fixture
def tiny() -> list[str]:
    """The options of a training run that takes about a second."""
    return list(TINY)
