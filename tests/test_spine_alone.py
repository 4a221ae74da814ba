"""minigpt without its edges: a copy of the package from which every edge is deleted trains, resumes and generates."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file
from scripts import ROOT

from minigpt import edges

TEXT = "".join(
    f"{number} times {number} is {number * number}. That is all there is to say.\n" for number in range(2000)
)
FOREIGN = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
# Rooms whose tests take a minute together. Generation and training, which take longer, are in the other tests here.
ROOMS = ("model", "tokenizer", "data", "storage", "pretrained", "evaluation", "runs")
FEWEST_TESTS = 700
SMALL = ("--n-layer", "1", "--n-head", "2", "--n-embd", "32", "--context-length", "32", "--batch-size", "4")


@pytest.fixture(scope="session")
def spine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package, of which only the spine is there."""
    folder = tmp_path_factory.mktemp("spine")
    deleted = {edge.package.removeprefix("minigpt.") for edge in edges.EDGES}
    shutil.copytree(
        ROOT / "minigpt",
        folder / "minigpt",
        ignore=lambda place, names: [
            name for name in names if name == "__pycache__" or (Path(place) == ROOT / "minigpt" and name in deleted)
        ],
    )
    # An editable installation would find the edges in the checkout.
    (folder / "sitecustomize.py").write_text(
        "import sys\n"
        "sys.meta_path[:] = [each for each in sys.meta_path if not each.__module__.startswith('__editable__')]\n",
        encoding="utf-8",
    )
    return folder


def environment(spine: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(spine), "OMP_NUM_THREADS": "1", "COLUMNS": "100"}


def command(spine: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a minigpt command of the copy in a folder."""
    return subprocess.run(
        [sys.executable, "-m", "minigpt", *arguments],
        cwd=folder, env=environment(spine), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def succeed(spine: Path, folder: Path, *arguments: str) -> str:
    done = command(spine, folder, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def trained(spine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text and a model that was trained on it, without interruption."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "numbers.txt").write_text(TEXT, encoding="utf-8")
    succeed(spine, folder, "train", "numbers.txt", "--steps", "60", "--save-every", "5", *SMALL)
    return folder


def test_every_module_can_be_imported(spine: Path) -> None:
    modules = [
        ".".join(path.relative_to(spine).with_suffix("").parts)
        for path in sorted((spine / "minigpt").rglob("*.py"))
        if path.name not in ("__init__.py", "__main__.py")
    ]
    script = f"import importlib\nfor name in {modules!r}: importlib.import_module(name)"
    done = subprocess.run([sys.executable, "-c", script], env=environment(spine), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_help_names_the_commands_of_the_spine_only(spine: Path, tmp_path: Path) -> None:
    shown = succeed(spine, tmp_path, "--help")
    assert "load-gpt2" in shown
    assert not [name for edge in edges.EDGES for name in edge.commands if f"\n  {name} " in shown]
    assert "--lora" not in succeed(spine, tmp_path, "train", "--help-all")


def test_a_command_of_a_missing_edge_is_refused_in_one_sentence(spine: Path, tmp_path: Path) -> None:
    done = command(spine, tmp_path, "export", "numbers")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "minigpt: export is not installed: the package minigpt.exporters is missing\n"


def test_it_generates_evaluates_and_lists(spine: Path, trained: Path) -> None:
    assert succeed(spine, trained, "generate", "7 times", "--max-new-tokens", "20", "--seed", "1").startswith("7 times")
    assert "bits per byte" in succeed(spine, trained, "evaluate", "numbers", "numbers.txt")
    assert "numbers" in succeed(spine, trained, "list")
    assert "numbers.txt" in succeed(spine, trained, "info", "numbers")


def test_a_killed_run_resumes_bit_for_bit(spine: Path, trained: Path, tmp_path: Path) -> None:
    shutil.copy(trained / "numbers.txt", tmp_path)
    state = tmp_path / "checkpoints" / "numbers" / "last" / "state.safetensors"
    running = subprocess.Popen(
        [sys.executable, "-m", "minigpt", "train", "numbers.txt", "--steps", "60", "--save-every", "5", *SMALL],
        cwd=tmp_path, env=environment(spine), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    while not state.exists() and running.poll() is None:
        time.sleep(0.005)
    running.send_signal(signal.SIGKILL)
    running.wait()
    succeed(spine, tmp_path, "train", "--resume")
    weights = Path("checkpoints", "numbers", "model.safetensors")
    resumed, whole = load_file(tmp_path / weights), load_file(trained / weights)
    assert resumed.keys() == whole.keys()
    assert all(resumed[name].equal(whole[name]) for name in whole)


def test_it_imports_a_hugging_face_folder(spine: Path, trained: Path, tmp_path: Path) -> None:
    """A run's folder is one; without the run's own files it is like any other."""
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    for name in (
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ):
        if (file := trained / "checkpoints" / "numbers" / name).exists():
            shutil.copy(file, foreign)
    succeed(spine, tmp_path, "load-gpt2", "--from", "foreign", "--name", "imported")
    drawn = ("--max-new-tokens", "20", "--seed", "1")
    expected = succeed(spine, trained, "generate", "7 times", *drawn)
    assert succeed(spine, tmp_path, "generate", "7 times", "--model", "imported", *drawn) == expected


def test_the_tests_of_the_spine_pass(spine: Path) -> None:
    """A test that needs an edge is in the folder of that edge."""
    folders = [str(ROOT / "tests" / room) for room in ROOMS]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=line", *folders],
        cwd=ROOT, env=environment(spine), capture_output=True, text=True, timeout=1200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= FEWEST_TESTS
