"""What CONTRIBUTING.md relies on: which tests `make quick` runs, and the versions in other tools' files."""

import re
import runpy
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
if not (ROOT / ".ci/changed_tests.py").exists():
    pytest.skip("the script is not here", allow_module_level=True)
CHANGED = runpy.run_path(str(ROOT / ".ci/changed_tests.py"))


@pytest.mark.parametrize(
    ("path", "tests"),
    [
        ("minigpt/training/muon.py", ["tests/training", "tests/test_training.py"]),
        ("minigpt/device.py", ["tests/device", "tests/test_device.py"]),
        ("tests/training/test_muon.py", ["tests/training/test_muon.py"]),
        ("tests/conftest.py", []),
        ("docs/how-to/train.md", ["tests/test_docs.py"]),
        ("README.md", ["tests/test_docs.py"]),
        ("Makefile", ["tests/packaging/test_makefile.py"]),
        ("constraints.txt", []),
    ],
)
def test_a_change_has_its_tests(path: str, tests: list[str]) -> None:
    assert CHANGED["tests_of"](path) == tests


def test_changes_are_found_on_a_branch_and_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *arguments], cwd=tmp_path, check=True)

    monkeypatch.setitem(CHANGED["git"].__globals__, "ROOT", tmp_path)
    git("init", "-q", "-b", "main")
    for name in ("one", "two"):
        (tmp_path / name).write_text("1")
        git("add", ".")
        git("commit", "-q", "-m", name)
    assert CHANGED["changed"]() == {"two"}
    git("switch", "-q", "-c", "branch")
    (tmp_path / "three").write_text("1")
    git("add", ".")
    git("commit", "-q", "-m", "three")
    (tmp_path / "one").write_text("2")
    (tmp_path / "four").write_text("1")
    assert CHANGED["changed"]() == {"one", "three", "four"}


def test_ruff_is_the_same_before_a_commit_and_in_the_tests() -> None:
    hook = re.search(r"ruff-pre-commit\n\s+rev: v(\S+)", (ROOT / ".pre-commit-config.yaml").read_text())
    constraint = re.search(r"^ruff==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert hook is not None
    assert constraint is not None
    assert hook[1] == constraint[1]


def test_the_tests_elsewhere_begin_with_the_oldest_versions_that_are_admitted() -> None:
    project, workflow = ((ROOT / name).read_text() for name in ("pyproject.toml", ".github/workflows/tests.yml"))
    python = re.findall(r'requires-python = ">=(\S+)"', project)
    elsewhere, macos = (re.findall(rf"torch>=(\S+); sys_platform {sign} 'darwin'", project) for sign in ("!=", "=="))
    oldest = re.findall(r'\{os: (\w+)-\S+, python: "(\S+)", torch: "([\d.]+)\.\*"\}', workflow)
    assert oldest == [(system, *python, *(macos if system == "macos" else elsewhere)) for system, _, _ in oldest]
    assert {system for system, _, _ in oldest} == {"ubuntu", "macos", "windows"}


def test_actions_are_pinned_by_commit() -> None:
    for path in (ROOT / ".github/workflows").glob("*.yml"):
        for action in re.findall(r"uses: (\S+)", path.read_text()):
            assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action), f"{path.name}: {action}"
