"""A running `minigpt serve` for the clients, which the extra `clients` installs; see `make test-serving`."""

import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from builders import random_model
from serving_texts import TEXTS

from minigpt.model.gpt import GPT
from minigpt.storage.checkpoint import save_checkpoint
from minigpt.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class Served:
    """A server process, its model, and where both are."""

    url: str
    folder: Path
    model: GPT
    tokenizer: Tokenizer
    process: "subprocess.Popen[str]"

    def ask(self, **body: object) -> dict[str, object]:
        """The answer to a request for completions, by Python's own client."""
        request = urllib.request.Request(f"{self.url}/v1/completions", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A small random model with a tokenizer trained on TEXTS, as `whale`."""
    folder = tmp_path_factory.mktemp("served") / "whale"
    tokenizer = Tokenizer.train(TEXTS * 20, "bpe:400")
    model = random_model(vocab_size=tokenizer.vocab_size, n_positions=128, n_embd=32, n_head=2, std=0.2)
    save_checkpoint(folder, model, tokenizer)
    command = [sys.executable, "-m", "minigpt", "serve", str(folder), "--port", "0", "--quantize", "none"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert process.stderr is not None
    url = process.stderr.readline().split(" ")[0]
    while "curl" not in (line := process.stderr.readline()):
        assert line, "the server has ended"
    reading = threading.Thread(target=process.stderr.read)  # a full pipe would stop the server
    reading.start()
    yield Served(url, folder, model, tokenizer, process)
    process.terminate()
    begin = time.monotonic()
    assert process.wait(60) == 0
    assert time.monotonic() - begin < 30
    reading.join()
    process.stderr.close()
