"""Runs exported models in the programs they are for; each returned function takes ids (T,) and gives logits (T, V)."""

import io
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minigpt.config import GPTConfig
from minigpt.errors import CheckpointError
from minigpt.exporters import llama_process
from minigpt.exporters.onnx import ONNX_MODEL
from minigpt.exporters.parity import Run, Tokenize
from minigpt.importers.gguf import open_gguf
from minigpt.model.gpt import GPT
from minigpt.native.accelerate import accelerate
from minigpt.storage.huggingface import from_huggingface

_NODE_SECONDS = 600
_LLAMA_SECONDS = 600  # for a text, or about 60 ids, and a file of at most 2 GB


class NotRunError(CheckpointError):
    """The program could not be run, whatever the file; the message is the reason."""


def gguf_in_torch(path: Path) -> tuple[Run, Tokenize]:
    """Reads a GGUF file back into PyTorch."""
    imported = open_gguf(path)
    try:
        model = from_huggingface(imported.tensors, imported.config)
    finally:
        imported.tensors.close()

    return model_in_torch(model), imported.tokenizer.encode


def model_in_torch(model: GPT) -> Run:
    """Runs a model that was read back into PyTorch, with the operations that `load_model` gives the original."""
    accelerate(model)

    @torch.no_grad()
    def run(ids: Sequence[int]) -> Tensor:
        return model(torch.tensor([ids]))[0]

    return run


def gguf_in_llama(path: Path) -> tuple[Run, Tokenize]:
    """Runs a GGUF file in llama.cpp, in a separate process, because llama.cpp aborts on errors and prints a lot.

    The returned functions raise CheckpointError if llama.cpp cannot use the file, NotRunError if it does not run.
    """

    def ask(question: str | Sequence[int]) -> Any:
        # By path and with -P, so that a json.py in the working directory is not imported instead of Python's.
        command = [sys.executable, "-P", llama_process.__file__, str(path)]
        asked = json.dumps(question).encode()
        try:
            done = subprocess.run(command, input=asked, capture_output=True, check=False, timeout=_LLAMA_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise NotRunError(f"no answer within {_LLAMA_SECONDS} s") from error
        if done.stdout.startswith(llama_process.UNUSABLE):
            raise NotRunError(done.stdout.removeprefix(llama_process.UNUSABLE).decode(errors="replace"))
        if done.returncode == -signal.SIGILL:
            raise NotRunError("llama-cpp-python was built for another processor")
        if done.returncode:
            reason = (done.stderr.decode(errors="replace").strip().splitlines() or ["without a message"])[-1]
            raise CheckpointError(f"llama.cpp cannot use the file ({reason})")
        return np.load(io.BytesIO(done.stdout))

    return lambda ids: torch.from_numpy(ask(ids)), lambda text: ask(text).tolist()


def page_in_node(path: Path, config: GPTConfig, **asked: Any) -> tuple[Tensor, dict[str, Any]]:
    """Runs the code in an exported page in node: -> the logits of its ids, (T, V), and the rest of the answer.

    assets/verify.js says what can be `asked`, and what it answers.
    Raises: NotRunError if there is no node that can run it; CheckpointError if the page fails there.
    """
    node = shutil.which("node")
    if node is None:
        raise NotRunError("node is not installed")
    if not _can_decompress(node):
        raise NotRunError(f"{node} does not run or is older than version 18, which a page needs")
    script = resources.files("minigpt.exporters.html") / "assets" / "verify.js"
    with resources.as_file(script) as program:
        command = [node, str(program), str(path)]
        try:
            done = subprocess.run(
                command, input=json.dumps(asked).encode(), capture_output=True, check=False, timeout=_NODE_SECONDS
            )
        except subprocess.TimeoutExpired as error:
            raise NotRunError(f"node gave no answer within {_NODE_SECONDS} s") from error
    if done.returncode:
        reason = (done.stderr.decode(errors="replace").strip().splitlines() or ["without a message"])[-1]
        raise CheckpointError(f"node cannot run the page ({reason})")
    line, logits = done.stdout.split(b"\n", 1)
    values = np.frombuffer(logits, np.float32).copy().reshape(-1, config.vocab_size)
    return torch.from_numpy(values), json.loads(line)


def _can_decompress(node: str) -> bool:
    """Whether node runs and has what a page is decompressed with."""
    command = [node, "-e", "new DecompressionStream('deflate')"]
    try:
        return subprocess.run(command, capture_output=True, check=False, timeout=_NODE_SECONDS).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def onnx_in_onnxruntime(folder: Path, config: GPTConfig) -> Run:
    """Runs an ONNX graph in onnxruntime: the first half of the ids at once, the others one by one with its cache."""
    import onnxruntime

    session = onnxruntime.InferenceSession(folder / ONNX_MODEL, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()][1:]
    empty = np.zeros((1, config.n_head, 0, config.head_width), np.float32)  # (B, H, 0, D)

    def run(ids: Sequence[int]) -> Tensor:
        cache: dict[str, Any] = {name.replace("present", "past_key_values"): empty for name in names}
        half = (len(ids) + 1) // 2
        logits = []
        for start, end in [(0, half), *((i, i + 1) for i in range(half, len(ids)))]:
            inputs = {
                "input_ids": np.array([ids[start:end]], np.int64),
                "attention_mask": np.ones((1, end), np.int64),
                "position_ids": np.arange(start, end, dtype=np.int64)[None],
            }
            result, *present = session.run(None, inputs | cache)
            cache = dict(zip(cache, present, strict=True))
            logits.append(torch.from_numpy(result[0]))  # (end - start, V)
        return torch.cat(logits)

    return run


def model_in_ctranslate2(folder: Path) -> Run:
    """Runs a model in CTranslate2, in the dtype of its weights if the CPU supports it."""
    import ctranslate2

    generator = ctranslate2.Generator(str(folder), device="cpu")

    def run(ids: Sequence[int]) -> Tensor:
        logits = generator.forward_batch([list(ids)], return_log_probs=False)
        return torch.from_numpy(np.array(logits, dtype=np.float32))[0]

    return run
