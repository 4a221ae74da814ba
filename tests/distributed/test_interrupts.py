"""An interrupt while the launcher is imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
