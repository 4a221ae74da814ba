"""Files of a run that the user may not read: every command says so in one sentence, and shows or does what it can."""

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders import finished_run
from typer.testing import CliRunner

from minigpt.cli.app import app
from minigpt.storage.model_list import model_names

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has other permissions")

NOBODY = 65534
COMMANDS = {
    "info": ["info", "fox"],
    "report": ["report", "fox", "--output", "page.html"],
    "generate": ["generate", "--model", "fox", "--max-new-tokens", "1"],
    "resume": ["train", "fox.txt", "--resume", "--name", "fox", "--no-report", "--steps", "8"],
}
DENIED = "could not be read (permission denied)"
NOT_WRITTEN = "could not be written (permission denied); choose a folder that can be written"


@contextlib.contextmanager
def without_privileges() -> Iterator[None]:
    """Acts as another user if this is root, who may read everything."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def run(command: str) -> Any:
    return CliRunner().invoke(app, COMMANDS[command])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run. Every command has run, and imported what that user may not read."""
    folder = tmp_path_factory.mktemp("whole")
    finished_run(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("MINIGPT_CACHE", str(folder / "cache"))
        for arguments in COMMANDS.values():
            arguments = [*arguments[:-1], "7"] if "--resume" in arguments else arguments
            assert CliRunner().invoke(app, arguments).exit_code == 0
    return folder


@pytest.fixture
def fox(whole: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the run in a folder that any user can open, owned by the user who reads it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(whole, folder, dirs_exist_ok=True)
        monkeypatch.chdir(folder)
        monkeypatch.setenv("MINIGPT_CACHE", str(folder / "cache"))
        if os.geteuid() == 0:
            for path in (folder, *folder.rglob("*")):
                os.chown(path, NOBODY, NOBODY)
        yield folder / "checkpoints" / "fox"
        for path in (folder / "checkpoints" / "fox" / "last", folder / "checkpoints" / "fox"):
            path.chmod(0o700)


@pytest.mark.parametrize(
    ("name", "command", "message"),
    [
        ("log.jsonl", "resume", f"minigpt: checkpoints/fox/log.jsonl {DENIED}"),
        ("last", "resume", f"minigpt: checkpoints/fox/last {NOT_WRITTEN}"),
        ("last/state.safetensors", "resume", f"minigpt: checkpoints/fox/last/state.safetensors {DENIED}"),
        ("training.json", "resume", f"minigpt: checkpoints/fox/training.json {DENIED}"),
        (".", "resume", f"minigpt: checkpoints/fox/training.json {DENIED}"),
        ("training.json", "report", f"minigpt: checkpoints/fox/training.json {DENIED}"),
        ("config.json", "generate", f"minigpt: checkpoints/fox/config.json {DENIED}"),
        ("model.safetensors", "generate", f"minigpt: checkpoints/fox/model.safetensors {DENIED}"),
        ("tokenizer.json", "generate", "minigpt: checkpoints/fox/tokenizer.json cannot be read (permission denied)"),
    ],
)
def test_a_file_that_may_not_be_read_is_one_sentence(fox: Path, name: str, command: str, message: str) -> None:
    (fox / name).chmod(0)
    with without_privileges():
        result = run(command)
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (1, message)


@pytest.mark.parametrize(
    ("name", "command", "is_said"),
    [
        ("training.json", "info", True),
        ("log.jsonl", "report", True),
        ("log.jsonl", "info", False),
        ("last", "info", False),
        ("last", "report", False),
        ("training.json", "generate", False),
        ("log.jsonl", "generate", False),
    ],
)
def test_the_rest_of_a_run_is_shown(fox: Path, name: str, command: str, is_said: bool) -> None:
    (fox / name).chmod(0)
    with without_privileges():
        result = run(command)
    assert result.exit_code == 0, result.stderr
    assert (f"not shown: checkpoints/fox/{name} {DENIED}\n" in result.stderr) == is_said


def test_an_output_in_a_folder_that_may_not_be_opened_is_one_sentence(fox: Path) -> None:
    closed = Path("closed")
    (closed / "inside").mkdir(parents=True)
    closed.chmod(0)
    with without_privileges():
        result = CliRunner().invoke(app, ["report", "fox", "--output", "closed/inside/page.html"])
    closed.chmod(0o700)
    assert (result.exit_code, len(result.stderr.splitlines())) == (1, 1)
    assert result.stderr.startswith("minigpt: closed/inside/page.html c")


def test_a_folder_that_may_not_be_read_hides_no_other_model(fox: Path) -> None:
    (fox.parent / "letters").mkdir()
    (fox.parent / "letters" / "config.json").write_text("{}")
    fox.chmod(0)
    with without_privileges():
        assert model_names(fox.parent) == ["letters"]
