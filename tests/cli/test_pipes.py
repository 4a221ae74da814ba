"""What commands read from standard input, and when they do not read it."""

import io
import itertools
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from builders import new_model
from rich.console import Console

from minigpt.cli.render import console as console_module
from minigpt.cli.render.console import progress_bar
from minigpt.storage.checkpoint import save_checkpoint
from minigpt.tokenizer.tokenizer import Tokenizer

SHORT = ["--max-new-tokens", "3", "--temperature", "0", "--json"]
COMMAND = [sys.executable, "-m", "minigpt", "generate", *SHORT]


@pytest.fixture
def one(here: Path) -> Path:
    """A model of bytes, called one."""
    return save_checkpoint("checkpoints/one", new_model(scale=8, n_positions=64), Tokenizer.named("bytes"))


def prompts(text: str) -> list[str]:
    return [json.loads(line)["prompt"] for line in text.splitlines()]


@pytest.mark.parametrize(
    ("arguments", "stdin", "expected"),
    [
        ([], "The sea\n", ["The sea"]),  # echo adds the end of the line
        ([], "The sea\r\n", ["The sea"]),
        ([], "a\nb\n\n", ["a\nb\n"]),
        (["-"], "The sea\n", ["The sea"]),
        ([], "", [""]),
        ([], "\n", [""]),
        ([""], "not read", [""]),
        (["given"], "not read", ["given"]),
        (["--prompt-format", "lines"], "a\nb\n", ["a", "b"]),
        (["--prompt-format", "jsonl"], '{"prompt": "a"}\n', ["a"]),
        (["--prompt-file", "-"], "kept\n", ["kept\n"]),
        (["--encoding", "latin-1"], "caf\xe9".encode("latin-1"), ["café"]),
    ],
)
def test_a_prompt_is_read_from_a_pipe(
    run: Any, one: Path, arguments: list[str], stdin: str | bytes, expected: list[str]
) -> None:
    result = run("generate", *arguments, *SHORT, stdin=stdin)
    assert result.exit_code == 0, result.stderr
    assert prompts(result.stdout) == expected


def test_a_text_to_inspect_may_be_a_pipe(run: Any, one: Path) -> None:
    piped = run("inspect", "one", "-", "--json", stdin="the fox\n")
    assert json.loads(piped.stdout)["ids"] == list(b"the fox")
    latin = run("inspect", "one", "-", "--json", "--encoding", "latin-1", stdin="caf\xe9".encode("latin-1"))
    assert json.loads(latin.stdout)["ids"] == list("café".encode())


def test_only_one_of_two_texts_is_read_from_a_pipe(run: Any, one: Path) -> None:
    whole = "the quick brown fox " * 9
    searched = run("generate", *SHORT, "--memorization", "--corpus", "-", stdin=whole)
    assert prompts(searched.stdout) == [""]  # the pipe is the text to search
    for prompt in (["-"], ["--prompt-file", "-"]):
        refused = run("generate", *prompt, *SHORT, "--memorization", "--corpus", "-", stdin=whole)
        assert refused.exit_code == 1
        assert "standard input is read once, for --corpus or for the prompt; give one of them a file" in refused.stderr


def test_benchmark_data_may_be_a_pipe(run: Any, one: Path) -> None:
    text = '{"text": "the fox is a dog"}\n{"text": "the dog"}\n'
    Path("lambada_test.jsonl").write_text(text)
    options = ["evaluate", "one", "lambada", "--json", "--data"]
    piped, named = (json.loads(run(*options, data, stdin=text).stdout) for data in ("-", "lambada_test.jsonl"))
    assert piped["benchmarks"][0]["data"] != named["benchmarks"][0]["data"]
    for each in (piped, named):
        del each["benchmarks"][0]["data"]
    assert piped == named
    refused = run(*options, "-", stdin="no json")
    assert "standard input, line 1 is not JSON" in refused.stderr


@pytest.mark.parametrize("redirected", ["</dev/null", "<&-", "<empty.txt"])
def test_cron_and_ci_begin_a_new_document(one: Path, redirected: str) -> None:
    Path("empty.txt").touch()
    line = f"{' '.join(COMMAND)} {redirected}"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, check=True, cwd=Path.cwd())
    assert prompts(done.stdout) == [""]


def test_a_socket_and_a_file_are_read_as_a_pipe_is(one: Path) -> None:
    """Programs of Node.js give their children sockets."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"by socket\n")
        ours.shutdown(socket.SHUT_WR)
        done = subprocess.run(COMMAND, stdin=theirs, capture_output=True, text=True, check=True)
    assert prompts(done.stdout) == ["by socket"]
    Path("file.txt").write_text("by file\n")
    with Path("file.txt").open("rb") as file:
        done = subprocess.run(COMMAND, stdin=file, capture_output=True, text=True, check=True)
    assert prompts(done.stdout) == ["by file"]


def test_an_input_that_never_ends_is_named_and_ctrl_c_ends_the_wait(one: Path) -> None:
    """As of a program whose parent keeps its standard input open."""
    reading, writing = os.pipe()
    with subprocess.Popen(COMMAND, stdin=reading, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("waiting for the end of standard input; ")
        process.send_signal(2)
        assert process.wait() == 130
    os.close(reading)
    os.close(writing)


def test_a_terminal_is_not_read(one: Path) -> None:
    pty = pytest.importorskip("pty")
    leader, follower = pty.openpty()
    done = subprocess.run(COMMAND, stdin=follower, capture_output=True, text=True, check=True)
    os.close(leader)
    os.close(follower)
    assert prompts(done.stdout) == [""]


def test_progress_in_a_pipe_is_a_line_after_seconds_and_then_ever_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    out, now = Console(file=io.StringIO(), width=200), 100.0
    monkeypatch.setattr(console_module.time, "monotonic", lambda: now)
    with progress_bar(out, "evaluating") as report:
        for done in range(1001):
            now = 100.0 + done
            report(done, 1000)
    lines = out.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[:3] == [
        "evaluating 5 of 1,000  0:05 elapsed, 16:35 left",
        "evaluating 10 of 1,000  0:10 elapsed, 16:30 left",
        "evaluating 15 of 1,000  0:15 elapsed, 16:25 left",
    ]
    seconds = [int(line.split()[1].replace(",", "")) for line in lines]
    gaps = [after - before for before, after in itertools.pairwise(seconds)]
    assert sorted(gaps) == gaps
    assert gaps[-1] == 60


def test_progress_in_bytes_and_without_amounts(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 4.0, 9.0, 20.0])
    monkeypatch.setattr(console_module.time, "monotonic", lambda: next(times))
    out = Console(file=io.StringIO(), width=200)
    with progress_bar(out, "tokenizing", in_bytes=True) as report:
        report(1_000_000, 4_000_000)
        report(2_000_000, 4_000_000)
        report(4_000_000, 4_000_000)
    assert out.file.getvalue() == "tokenizing 2.0 MB of 4.0 MB  0:09 elapsed, 0:09 left\n"  # type: ignore[attr-defined]
    times = iter([0.0, 9.0])
    out = Console(file=io.StringIO(), width=200)
    with progress_bar(out, "scanning …", amounts=False) as report:
        report(1, 3, "counting …")
    assert out.file.getvalue() == "counting …  0:09 elapsed\n"  # type: ignore[attr-defined]


def test_a_long_evaluation_says_how_far_it_is(run: Any, one: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_module, "_FIRST_LINE", 0.0)
    result = run("evaluate", "one", "fox.txt", "--batch-size", "1")
    assert "evaluating 1 of " in result.stderr
    assert "evaluating" not in result.stdout
