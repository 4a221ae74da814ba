"""`minigpt list` and `minigpt rm`, and the names that the shell completes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from builders import new_model
from typer.testing import CliRunner

from minigpt.cli.app import app
from minigpt.storage.checkpoint import save_checkpoint
from minigpt.storage.run import Run
from minigpt.storage.run_record import Result
from minigpt.tokenizer.tokenizer import Tokenizer

BYTES = Tokenizer.named("bytes")
pytestmark = pytest.mark.usefixtures("no_shipped_models")


def new_run(name: str, *, age: int = 0, **parts: Any) -> Run:
    """A run of fox.txt that was saved `age` seconds ago, and finished unless `parts` says otherwise."""
    record = {"format": 1, "sources": ["/home/someone/fox.txt"], "model": new_model().config.to_dict()} | parts
    run = Run.create(Path("checkpoints") / name, new_model(), BYTES, record)
    if "result" not in parts:
        run.update(result=Result(step=9, reason="length", seconds=90.0, bits_per_byte=1.8434, validation_loss=2.0))
    for path in [run.directory, *run.directory.iterdir()]:
        os.utime(path, (1e9 - age, 1e9 - age))
    return run


def test_runs_are_listed_with_their_figures_the_newest_first(run: Any) -> None:
    new_run("older", age=100)
    new_run("newer", sources=["-"])
    new_run("moved", age=50, sources=[r"C:\Users\jane\fox.txt"], **{"from": r"..\models\gpt2"})
    shown = run("list").stdout
    *header, newer, moved, older = shown.splitlines()
    assert " ".join(header).split() == ["bits", "per", "name", "parameters", "disk", "text", "minutes", "byte", "date"]
    assert newer.split()[0] == "newer"
    assert "standard input" in newer
    assert "fox.txt (from gpt2)" in moved
    assert "jane" not in shown
    name, *rest = older.split()
    assert name == "older"
    for figure in ("fox.txt", "1.5", "1.8434", "kB"):
        assert figure in rest
    assert "/home" not in shown


def test_names_and_dates_stay_whole_on_80_columns(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    new_run("sherlock_holmes", sources=["sherlock_holmes.txt"], **{"from": "checkpoints/sherlock_holmes"})
    lines = run("list").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    (line,) = [line for line in lines if line.startswith("sherlock_holmes ")]
    assert line.rstrip().endswith("2001-09-09")


def test_models_without_a_record_unfinished_runs_and_damaged_records_are_shown_as_such(run: Any) -> None:
    save_checkpoint("checkpoints/imported", new_model(), BYTES)
    Path("checkpoints/foreign").mkdir()
    Path("checkpoints/foreign/model.gguf").write_bytes(b"GGUF")
    new_run("begun", result=None)
    damaged = new_run("damaged").directory / "training.json"
    damaged.write_text("{")
    Path("checkpoints/empty").mkdir()
    Path("checkpoints/notes.txt").write_text("no model")
    result = run("list")
    lines = {line.split()[0]: line for line in result.stdout.splitlines()[2:]}
    assert lines.keys() == {"imported", "foreign", "begun", "damaged"}
    assert "(imported model)" in lines["imported"]
    assert "(imported model)" in lines["foreign"]
    assert "(not finished)" in lines["begun"]
    assert "(damaged record)" in lines["damaged"]
    assert f"note: {damaged} is not JSON" in result.stderr


def test_json_has_every_figure(run: Any) -> None:
    new_run("one")
    (entry,) = json.loads(run("list", "--json").stdout)
    assert entry["name"] == "one"
    assert entry["kind"] == "run"
    assert entry["finished"] is True
    assert entry["bits_per_byte"] == 1.8434
    assert entry["parameters"] == new_model().config.n_parameters
    assert entry["disk_bytes"] == sum(
        path.stat().st_size for path in Path("checkpoints/one").rglob("*") if path.is_file()
    )
    assert entry["problems"] == []


def test_a_folder_without_runs_is_one_line_and_an_empty_list(run: Any) -> None:
    result = run("list")
    assert result.exit_code == 0
    assert result.stdout == ""
    assert "minigpt train corpus.txt" in result.stderr
    assert json.loads(run("list", "--json").stdout) == []


def test_listing_imports_no_torch(here: Path) -> None:
    new_run("one")
    code = (
        "import sys, atexit\n"
        "atexit.register(lambda: print('HEAVY', {'torch', 'numpy', 'tokenizers'} & set(sys.modules)))\n"
        "from minigpt.cli.app import main\nsys.argv = ['minigpt', 'list']\nmain()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "HEAVY set()" in done.stdout, done.stderr


def test_a_run_is_removed_after_a_question_and_kept_without_a_yes(run: Any) -> None:
    directory = new_run("one").directory
    (directory / "notes.txt").write_text("mine")
    for answer in ("n\n", ""):
        kept = run("rm", "one", stdin=answer)
        assert kept.exit_code == 1
        assert directory.exists()
    assert "not written by minigpt: notes.txt" in kept.stderr
    assert "kB" in kept.stderr
    removed = run("rm", "one", stdin="y\n")
    assert removed.exit_code == 0, removed.stderr
    assert f"removed {directory}" in removed.stderr
    assert list(Path("checkpoints").iterdir()) == []


def test_several_runs_are_removed_without_a_question_by_yes_and_none_if_one_is_missing(run: Any) -> None:
    new_run("one")
    new_run("two")
    refused = run("rm", "one", "three", "--yes")
    assert refused.exit_code == 1
    assert "there is no run 'three'" in refused.stderr
    assert Path("checkpoints/one").exists()
    assert run("rm", "one", "two", "one", "--yes").exit_code == 0
    assert list(Path("checkpoints").iterdir()) == []


def test_a_run_that_is_being_trained_is_not_removed(run: Any) -> None:
    running = new_run("one")
    running.lock()
    refused = run("rm", "one", "--yes")
    assert refused.exit_code == 1
    assert "is being trained by this process" in refused.stderr
    assert running.directory.exists()
    running.unlock()


@pytest.mark.parametrize("name", ["..", ".", "", "../other", "a/b", "/tmp"])
def test_only_a_name_in_the_folder_of_checkpoints_is_removed(run: Any, name: str) -> None:
    new_run("one")
    refused = run("rm", "--yes", "--", name)
    assert refused.exit_code == 1
    assert "is not the name of a run" in refused.stderr


def test_a_link_and_a_folder_without_a_run_are_not_removed(run: Any) -> None:
    elsewhere = Path(shutil.copytree(new_run("one").directory, "elsewhere"))
    Path("checkpoints/link").symlink_to(elsewhere.absolute())
    save_checkpoint("checkpoints/imported", new_model(), BYTES)
    Path("checkpoints/texts").mkdir()
    for name, message in {"link": "is a link", "imported": "no training run", "texts": "no training run"}.items():
        refused = run("rm", name, "--yes")
        assert refused.exit_code == 1
        assert message in refused.stderr
    assert (elsewhere / "config.json").exists()


def test_what_a_link_in_a_run_leads_to_stays(run: Any) -> None:
    directory = new_run("one").directory
    Path("texts").mkdir()
    Path("texts/fox.txt").write_text("a text")
    (directory / "texts").symlink_to(Path("texts").absolute())
    assert run("rm", "one", "--yes").exit_code == 0
    assert Path("texts/fox.txt").read_text() == "a text"


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("minigpt generate hello --model ", {"fox", "whale"}),
        ("minigpt info wh", {"whale"}),
        ("minigpt rm ", {"fox", "whale"}),
        ("minigpt train --resume --name f", {"fox"}),
        ("minigpt info --checkpoints other ", {"third"}),
        ("minigpt export fox --to ", {"gguf", "onnx", "ctranslate2", "html"}),
        ("minigpt train fox.txt --preset gpt2-", {"gpt2-medium", "gpt2-large", "gpt2-xl"}),
    ],
)
def test_the_shell_completes_names_of_runs_and_formats(run: Any, typed: str, expected: set[str]) -> None:
    for name in ("checkpoints/fox", "checkpoints/whale", "other/third"):
        save_checkpoint(name, new_model(), BYTES)
    words = typed.split(" ")
    completed = CliRunner().invoke(
        app,
        [],
        env={"_MINIGPT_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1)},
        prog_name="minigpt",
    )
    assert set(completed.stdout.split()) == expected
