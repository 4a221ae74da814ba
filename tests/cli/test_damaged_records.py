"""Damaged and tampered files of a run: every command says in one sentence what is wrong, and never ends in a traceback.

The cases are made from a run's own files: every field is removed, and replaced by values that it cannot have.
"""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import finished_run
from torch import Tensor
from typer.testing import CliRunner

from minigpt.cli.app import app
from minigpt.storage.tensors import load_tensors, save_tensors

MISSING = object()
WRONG: dict[str, Any] = {
    "missing": MISSING,
    "null": None,
    "a string": "\x1b[31mx",
    "null character": "a\0",
    "an object": {"x": 1},
    "a list": [[]],
    "true": True,
    "zero": 0,
    "negative": -3,
    "largest integer": 2**63 - 1,
    "huge": 10**400,
    "nan": float("nan"),
    "infinite": float("-inf"),
    "deep": json.loads("[" * 60 + "]" * 60),
}
RECORD, LOG, STATE, WEIGHTS = "training.json", "log.jsonl", "last/state.safetensors", "model.safetensors"
CHANGED = (RECORD, LOG, STATE, WEIGHTS, "config.json", "README.md")  # by a command that trains
COMMANDS = {
    "info": ["info", "fox"],
    "report": ["report", "fox", "--output", "page.html"],
    "generate": ["generate", "--model", "fox", "--max-new-tokens", "1", "--memorization"],
    "evaluate": ["evaluate", "fox", "short.txt"],
    "resume": ["train", "--resume", "--name", "fox", "--steps", "7", "--no-report"],
}
Write = Callable[[Path], object]


def paths_in(value: Any, start: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every field, and of the first item of every list."""
    if start:
        yield start
    items = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, inner in items:
        yield from paths_in(inner, (*start, key))


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A copy of the value in which the field at this path is another one, or missing."""
    copy = json.loads(json.dumps(value))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    if new is MISSING:
        del inner[path[-1]]
    else:
        inner[path[-1]] = new
    return copy


def tampered(value: Any) -> Iterator[tuple[str, Any]]:
    """Every way to damage a JSON value, with a name."""
    for path in paths_in(value):
        for name, new in WRONG.items():
            yield f"{'.'.join(map(str, path))}: {name}", changed(value, path, new)


def damaged_records(fox: Path) -> Iterator[tuple[str, Write]]:
    entries = json.loads((fox / RECORD).read_text())
    entries["changes"] = [{"step": 3, "option": "seed", "from": 1, "to": 2}]
    for name, value in tampered(entries):
        yield name, lambda folder, value=value: (folder / RECORD).write_text(json.dumps(value))


def damaged_logs(fox: Path) -> Iterator[tuple[str, Write]]:
    lines = [json.loads(line) for line in (fox / LOG).read_text().splitlines()]
    seen: set[frozenset[str]] = set()
    for number, line in enumerate(lines):
        if frozenset(line) in seen:  # the lines of steps are alike
            continue
        seen.add(frozenset(line))
        for name, value in tampered(line):
            text = "".join(json.dumps(each) + "\n" for each in [*lines[:number], value, *lines[number + 1 :]])
            yield f"line {number + 1}, {name}", lambda folder, text=text: (folder / LOG).write_text(text)
    for raw in (b"[1]", b"{", b"[" * 100_000, b"3", b"\xff", b"9" * 5000):
        yield f"a line {raw[:5]!r}", lambda folder, raw=raw: (folder / LOG).write_bytes(raw + b"\n")


def damaged_states(fox: Path) -> Iterator[tuple[str, Write]]:
    tensors, metadata = load_tensors(fox / STATE)

    def write(tensors: dict[str, Tensor], metadata: dict[str, str]) -> Write:
        return lambda folder: save_tensors(folder / STATE, tensors, metadata)

    for name, value in tampered(json.loads(metadata["progress"])):
        yield name, write(tensors, {"progress": json.dumps(value)})
    for text in ("", "{", "[]", "[" * 100_000):
        yield f"progress {text[:5]!r}", write(tensors, {"progress": text})
    yield "no progress", write(tensors, {})
    for name, tensor in tensors.items():
        others = {key: value for key, value in tensors.items() if key != name}
        yield f"{name}: missing", write(others, metadata)
        yield f"{name}: another name", write(others | {f"{name}x": tensor}, metadata)
        yield f"{name}: a plain name", write(others | {"x": tensor}, metadata)
        yield f"{name}: another shape", write(others | {name: torch.zeros(2, 3)}, metadata)
        yield f"{name}: another dtype", write(others | {name: tensor.to(torch.int64)}, metadata)
        yield f"{name}: nan", write(others | {name: torch.full_like(tensor, torch.nan)}, metadata)


def damaged_weights(fox: Path) -> Iterator[tuple[str, Write]]:
    tensors, metadata = load_tensors(fox / WEIGHTS)
    for key in ("step", "validation_loss"):
        for value in ("", "x", "-1", "nan", "inf", "9" * 400, "9" * 5000):
            new = metadata | {key: value}
            yield f"{key}: {value[:9]}", lambda folder, new=new: save_tensors(folder / WEIGHTS, tensors, new)


KINDS = {
    RECORD: damaged_records,
    LOG: damaged_logs,
    STATE: damaged_states,
    WEIGHTS: damaged_weights,
}


@pytest.fixture(scope="module")
def fox(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run."""
    return finished_run(tmp_path_factory.mktemp("records"))


@pytest.fixture
def here(fox: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that run, in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINIGPT_CACHE", str(fox.parent.parent / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "short.txt").write_text("the quick brown fox")
    shutil.copytree(fox, tmp_path / "checkpoints" / "fox")
    return tmp_path / "checkpoints" / "fox"


def problem(command: str) -> str | None:
    """What is wrong with a command's answer: a traceback, an escape sequence, an error that is not one short line."""
    result = CliRunner().invoke(app, COMMANDS[command])
    error = result.exception
    if error is not None and not isinstance(error, SystemExit):
        return f"{type(error).__name__}: {str(error)[:200]}"
    if result.exit_code not in (0, 1) or "\x1b[31m" in result.output:
        return f"exit {result.exit_code}: {result.output[:300]!r}"
    last = result.stderr.splitlines()[-1:] or [""]
    if result.exit_code == 1 and not (last[0].startswith("minigpt: ") and len(last[0]) < 600):
        return f"no single sentence: {result.stderr[-700:]!r}"
    return None


def problems_of(cases: list[tuple[str, Write]], fox: Path, here: Path) -> list[str]:
    """What is wrong with the answers of all commands to these cases."""
    found = []
    for name, write in cases:
        for command in COMMANDS:
            write(here)
            if wrong := problem(command):
                found.append(f"{name}; {command}: {wrong}")
            if command == "resume":
                for file in CHANGED:
                    shutil.copyfile(fox / file, here / file)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_some_damaged_files_end_no_command_in_a_traceback(kind: str, fox: Path, here: Path) -> None:
    cases = list(KINDS[kind](fox))
    assert problems_of(random.Random(kind).sample(cases, 8), fox, here) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_no_damaged_file_ends_a_command_in_a_traceback(kind: str, fox: Path, here: Path) -> None:
    cases = list(KINDS[kind](fox))
    assert problems_of(cases, fox, here) == []
