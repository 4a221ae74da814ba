"""What commands write to a terminal: nothing in a file, a record or a name can send it an escape sequence."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from builders import finished_run
from typer.testing import CliRunner

from minigpt.cli.app import app
from minigpt.cli.render.console import console, facts
from minigpt.cli.render.terminal import write

pty = pytest.importorskip("pty")

# A title and a question to the terminal, colors, C1 controls, a backspace, a bell, reversed text, markup.
NAME = "a\x1b]0;owned\x07\x1b[31;7;5mb\x9b6nc\u202ed[red]e\x08f:skull:"
VALUE = NAME + "[/red]\r\ng"
FORBIDDEN = ("\x1b]", "\x1b[31;7;5m", "\x9b", "\u202e", "\x07", "\x08")
SHOWN = "a␛]0;owned␇␛[31;7;5mb␡6nc⟨202E⟩d[red]e␈f:skull:"
OURS = re.compile(r"\x1b\[(\?25[lh]|[0-9;]*m|[0-9]*[AK])")  # cursor off and on, styles, up, clear the line

# Runs commands in one process, as if each had been typed.
RUN = """
import json, sys
from minigpt.cli.app import main
for number, arguments in enumerate(json.load(open(sys.argv[1]))):
    print(f"== {number}", flush=True)
    sys.argv = ["minigpt", *arguments]
    try:
        main()
    except SystemExit:
        pass
"""


def in_a_terminal(commands: list[list[str]], folder: Path) -> str:
    """What the commands write to a terminal of 300 columns, byte by byte."""
    (folder / "commands.json").write_text(json.dumps(commands))
    master, slave = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "300", "MINIGPT_CACHE": str(folder / "cache")}
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, "commands.json"],
        stdin=subprocess.DEVNULL, stdout=slave, stderr=slave, cwd=folder, env=environment,
    )  # fmt: skip
    os.close(slave)
    written = b""
    try:
        while block := os.read(master, 65536):
            written += block
    except OSError:  # Linux: the other end is closed
        pass
    os.close(master)
    process.wait()
    return written.decode(errors="replace")


def tampered(record: Any) -> Any:
    """The record with the hostile text in every string that may hold any text."""
    fixed = {"optimizer", "schedule", "dtype", "device", "compile", "sharding", "checkpoint_activations", "tokenizer",
             "activation_function", "encoding_errors", "preset", "reason", "fingerprint"}  # fmt: skip
    if isinstance(record, dict):
        return {key: value if key in fixed else tampered(value) for key, value in record.items()}
    if isinstance(record, list):
        return [tampered(value) for value in record]
    return VALUE if isinstance(record, str) else record


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that trained, and a copy of it with a hostile name, record and log."""
    folder = tmp_path_factory.mktemp("terminal")
    run = finished_run(folder)
    hostile = run.with_name(NAME)
    hostile.symlink_to(run, target_is_directory=True)
    entries = json.loads((run / "training.json").read_text())
    (run / "training.json").write_text(json.dumps(tampered(entries) | {"preset": VALUE}))
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    lines = [line | ({"sample": VALUE, "prompt": VALUE} if "sample" in line else {}) for line in log]
    (run / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "texts").mkdir()
    (folder / "texts" / f"{NAME}.txt").write_text(f"the quick brown fox jumps over {VALUE}; " * 60)
    (folder / "texts" / f"{NAME}.bin").write_bytes(bytes(range(256)) * 20)
    broken = shutil.copytree(run, folder / "broken")
    config = json.loads((run / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(config | {"activation_function": VALUE + "x" * 10_000_000}))
    return folder


def test_no_command_passes_an_escape_sequence_on(folder: Path) -> None:
    text, run, tiny = f"texts/{NAME}.txt", NAME, ["--n-layer", "1", "--n-head", "1", "--n-embd", "8", "--steps", "2"]
    tiny += ["--context-length", "8", "--tokenizer", "bytes", "--device", "cpu", "--dtype", "float32"]
    short = ["--max-new-tokens", "8", "--temperature", "2"]
    commands = [
        ["train", "texts", *tiny, "--sample-prompt", VALUE, "--eval-every", "1", "--sample-every", "1"],
        ["train", text, *tiny, "--plan"],
        ["train", "fox.txt", "--resume", "--name", "fox", "--steps", "9"],
        ["train", "--resume", "--name", "fox", "--seed", "3", "--n-embd", "4"],
        ["train", text, "--name", NAME],
        ["train", text, "--from", VALUE],
        ["train", text, "--tokenizer", VALUE],
        ["train", VALUE],
        ["info", run],
        ["info", "broken"],
        ["info", VALUE],
        ["info", run, VALUE],
        ["info", f"--{VALUE}"],
        [VALUE],
        ["list"],
        ["rm", VALUE, "--yes"],
        ["rm", f"{run}", "no such run", "--yes"],
        ["report", run],
        ["report", VALUE],
        ["generate", VALUE, "--model", run, *short],
        ["generate", VALUE, "--model", run, *short, "--explain"],
        ["generate", VALUE, "--model", run, *short, "--table"],
        ["generate", VALUE, "--model", run, *short, "--memorization", "--corpus", text],
        ["generate", VALUE, "--model", run, *short, "--logit-bias", VALUE],
        ["generate", "--model", run, "--steps", VALUE],
        ["generate", "--model", run, "--temperature", VALUE],
        ["play", run],
        ["evaluate", run, "texts"],
        ["evaluate", run, VALUE],
        ["corpus", "texts"],
        ["inspect", run, VALUE],
        ["inspect", run, VALUE, "--table", "--html", f"{NAME}.html"],
        ["export", run, "--to", "gguf", "--output", f"{NAME}.gguf"],
        ["export", run, "--to", VALUE],
        ["load-gpt2", "--from", f"checkpoints/{run}", "--name", "imported"],
        ["load-gpt2", "--from", VALUE],
    ]
    shown = in_a_terminal(commands, folder)
    for part, arguments in zip(shown.split("== ")[1:], commands, strict=True):
        assert not [sequence for sequence in FORBIDDEN if sequence in part], (arguments, part)
        assert "\x1b" not in OURS.sub("", part), (arguments, part)
        assert "Traceback" not in part, (arguments, part)
        assert "x" * 5000 not in part, arguments
    assert shown.count(SHOWN) > 40
    assert shown.count(repr(VALUE)) > 6
    assert "characters omitted" in shown


def test_values_in_facts_are_cut_and_stay_on_their_line(capsys: pytest.CaptureFixture[str]) -> None:
    console(stderr=False).print(facts("a\nb", {"c\nd": "e\nf" + "x" * 10_000_000}))
    shown = capsys.readouterr().out
    assert "a␊b" in shown
    assert "e␊f" in shown
    assert len(shown) < 5000


def test_an_error_and_a_note_are_one_line_each(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["info", "a\nminigpt: everything is fine\x1b[2J", "--checkpoints", "b\nc"])
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert "in b␊c" in result.stderr


def test_a_result_reaches_a_pipe_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    write("a\x1b[31m\u202e")
    assert capsys.readouterr().out == "a\x1b[31m\u202e\n"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse names that are not UTF-8")
def test_a_text_whose_name_is_not_utf8_trains_and_resumes_and_is_shown(
    run: Any, here: Path, tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = os.fsdecode(b"caf\xe9.txt")
    (here / "fox.txt").rename(here / name)
    assert run("train", name, *tiny).exit_code == 0
    record = json.loads((here / "checkpoints/caf_/training.json").read_bytes().decode("utf-8"))
    assert record["sources"] == [str(here / name)]
    resumed = run("train", name, "--resume", "--steps", "7")
    assert resumed.exit_code == 0, resumed.stderr
    about = run("info", "caf_")
    assert "caf⟨E9⟩.txt" in about.stdout
    assert "caf⟨E9⟩.txt" in run("corpus", name).stdout
    evaluated = run("evaluate", "caf_", name)
    assert evaluated.exit_code == 0, evaluated.stderr
    assert run("generate", "--model", "caf_", "--max-new-tokens", "2", "--memorization").exit_code == 0
    assert "café" not in (here / "checkpoints/caf_/README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[31m", "a\u202eb", "a\x00b", os.fsdecode(b"a\xff")])
def test_a_name_with_control_characters_is_refused(run: Any, name: str) -> None:
    refused = run("train", "fox.txt", "--name", name)
    assert refused.exit_code == 1
    assert "without slashes, newlines and control characters" in refused.stderr
    assert refused.stderr.count("\n") == 1
