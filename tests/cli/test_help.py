"""The command line before any command runs: help without torch, the frozen options, typos, the number of threads."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import typer
from scripts import ROOT, load_script
from typer.testing import CliRunner

from minigpt.cli.app import app

HEAVY = {"torch", "tiktoken", "numpy", "transformers", "tokenizers", "pydantic", "minigpt.storage.run_record"}


@pytest.mark.parametrize("arguments", [["train", "--help"], ["generate", "-h"], ["--version"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys, atexit\n"
        f"atexit.register(lambda: print('HEAVY', {HEAVY!r} & set(sys.modules)))\n"
        "from minigpt.cli.app import main\n"
        f"sys.argv = ['minigpt', *{arguments!r}]\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "HEAVY set()" in done.stdout


def test_the_reference_in_docs_is_what_help_says() -> None:
    written = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert written == load_script("docs/cli_reference.py").reference(), (
        "run: python docs/cli_reference.py > docs/cli.md"
    )


def test_the_set_of_options_is_the_frozen_one() -> None:
    root: Any = typer.main.get_command(app)
    now = {
        name: sorted(option for p in command.params if p.param_type_name == "option" for option in p.opts)
        for name, command in root.commands.items()
    }
    golden = ROOT / "tests" / "golden" / "options.json"
    assert now == json.loads(golden.read_text()), "an option more or less is a decision: change the golden file by hand"


def test_a_mistyped_command_suggests_the_right_one() -> None:
    result = CliRunner().invoke(app, ["trian", "x.txt"])
    assert result.exit_code == 2
    assert "train" in result.output


def test_a_mistyped_option_suggests_the_right_one() -> None:
    result = CliRunner().invoke(app, ["train", "x.txt", "--step", "3"])
    assert result.exit_code == 2
    assert "--steps" in result.output


def test_the_checkout_script_does_what_the_command_does() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "cli.py"), "--version"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "minigpt 0.1.0\n")


@pytest.mark.parametrize("count", ["0", "two"])
def test_a_wrong_number_of_threads_is_one_line_before_openmp_reads_it(count: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "minigpt", "info"],
        env=os.environ | {"OMP_NUM_THREADS": count},
        capture_output=True,
        text=True,
        check=False,
    )
    expected = f"minigpt: OMP_NUM_THREADS is {count!r}; it must be a whole number from 1 on\n"
    assert (done.returncode, done.stderr) == (1, expected)


def test_a_number_of_threads_for_each_level_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", " 2,1")
    result = CliRunner().invoke(app, ["info", "no-such-model"])
    assert "no model 'no-such-model'" in result.stderr
