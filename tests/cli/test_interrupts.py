"""Ctrl-C before there is anything to save."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from minigpt.cli import signals

# Sends itself the signal when a module is imported; `lost` swallows it, as C extensions do.
INTERRUPTED = """
import builtins, os, signal, sys
plain, wanted, lost = builtins.__import__, sys.argv.pop(1), sys.argv.pop(1) == "lost"

def imported(name, *rest, **named):
    global wanted
    if name == wanted:
        wanted = None
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            if not lost:
                raise
    return plain(name, *rest, **named)

builtins.__import__ = imported
from minigpt.cli.start import main
main()
"""


# Sends itself the signal before a line of Python, and prints how many lines were executed, both counted from the first
# line of the command's own code: line 1 is a docstring, line 2 `try`.
AT_A_LINE = """
import os, signal, sys
wanted, lines, has_begun = int(sys.argv.pop(1)), 0, False

def trace(frame, event, argument):
    global lines, has_begun
    if event == "line":
        has_begun = has_begun or frame.f_code.co_filename.endswith("start.py")
        lines += has_begun
        if lines == wanted:
            sys.settrace(None)
            os.kill(os.getpid(), signal.SIGINT)
    return trace

sys.settrace(trace)
try:
    from minigpt.cli.start import main
    main()
finally:
    sys.settrace(None)
    print(lines)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no kill")
def test_an_interrupt_at_any_line_of_the_command_ends_it_without_a_traceback(tmp_path: Path) -> None:
    def ended(line: int) -> tuple[int, str, str]:
        command = [sys.executable, "-c", AT_A_LINE, str(line), "train", "--plan"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
        return done.returncode, done.stderr, done.stdout

    ended(10**9)  # the first run of a checkout compiles its modules, which is more lines
    whole = ended(10**9)
    assert whole[0] == 1
    assert whole[1].startswith("minigpt: there is no text to plan for")
    n_lines = int(whole[2])
    early = (3, 32, 1024, n_lines // 2)
    late = (n_lines - back for back in (100, 25))
    answers = {line: ended(line) for line in (*early, *late)}
    stopped, silent = (130, "minigpt: stopped\n"), (130, "")
    assert {answers[line][:2] for line in early} <= {stopped, silent}
    assert {answer[:2] for answer in answers.values()} <= {stopped, silent, whole[:2]}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no kill")
@pytest.mark.parametrize(
    ("module", "lost", "message"),
    [
        ("typer", "", ""),
        ("minigpt.distributed.devices", "", "minigpt: stopped\n"),
        ("torch", "lost", "minigpt: stopped\n"),
    ],
)
def test_an_interrupt_at_the_start_ends_with_130(tmp_path: Path, module: str, lost: str, message: str) -> None:
    text = tmp_path / "text.txt"
    text.write_text("some text\n" * 100)
    command = [sys.executable, "-c", INTERRUPTED, module, lost, "train", str(text), "--plan"]
    environment = os.environ | {"MINIGPT_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120, env=environment)
    assert (done.returncode, done.stderr) == (130, message)


def test_an_ignored_interrupt_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        signals.exit_on_interrupt()
        signals.raise_on_interrupt()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
