"""The Makefile's virtual environment: one that cannot be made, and one without pip."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.skipif(os.name == "nt", reason="Python in these tests is a shell script"),
    pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed"),
]


def program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def make(folder: Path, target: str, **variables: object) -> int:
    """Makes a target in this folder; returns the exit status."""
    given = [f"{name}={value}" for name, value in variables.items()]
    return subprocess.run(["make", "-f", ROOT / "Makefile", target, *given], cwd=folder, check=False).returncode


def test_an_environment_that_cannot_be_made_is_made_again_the_next_time(tmp_path: Path) -> None:
    making = f"echo made >> {tmp_path}/log; mkdir -p .venv/bin; touch .venv/bin/python; exit 1"
    python = program(tmp_path / "python", f'case "$1" in -m) {making};; esac')
    for attempts in (1, 2):
        assert make(tmp_path, ".venv/bin/python", PYTHON=python) != 0
        assert (tmp_path / "log").read_text() == "made\n" * attempts


@pytest.mark.parametrize(("has_pip", "calls"), [(True, ["pip --version"]), (False, ["pip --version", "ensurepip"])])
def test_an_environment_without_pip_gets_it(tmp_path: Path, has_pip: bool, calls: list[str]) -> None:
    status = 0 if has_pip else 1
    program(tmp_path / ".venv/bin/python", f'echo "$@" >> log; [ "$2" != pip ] || exit {status}')
    assert make(tmp_path, ".venv/.pip") == 0
    assert (tmp_path / "log").read_text().splitlines() == [f"-m {call}" for call in calls]
