"""Checks an installed minigpt: `minigpt generate` runs a random model, with the compiled C code.

cibuildwheel runs it on each wheel. Exit status 1: minigpt works, but without the C code; the reason is printed.
"""

import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import torch

from minigpt import GPT, GPTConfig, Tokenizer, save_checkpoint
from minigpt.native import compiled


def main() -> str:
    """Why the C code is not used; empty if it is."""
    assert Path(compiled.__file__).is_relative_to(sysconfig.get_path("platlib")), compiled.__file__
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        model = GPT(GPTConfig(vocab_size=257, n_positions=32, n_embd=16, n_layer=1, n_head=2))
        save_checkpoint(Path(folder) / "tiny", model, Tokenizer.named("bytes"))
        minigpt = Path(sysconfig.get_path("scripts")) / "minigpt"
        options = ["--checkpoints", folder, "--max-new-tokens", "8", "--seed", "1"]
        done = subprocess.run([minigpt, "generate", "Once", *options], capture_output=True, check=True)
        sys.stderr.buffer.write(done.stderr)
        assert done.stdout.startswith(b"Once"), done.stdout
        assert (b"compiled for" in done.stderr) == (compiled.library() is not None)
    return compiled.why_unavailable()


if __name__ == "__main__":
    sys.exit(main() or 0)
