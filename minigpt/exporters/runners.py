"""Exported models run by the programs that they are for: each function gives a way from ids (T,) to logits (T, V).

What the programs lack for that, this module adds: the memory of an ONNX graph, a process for llama.cpp.
"""

import io
import json
import signal
import subprocess
import sys
from collections.abc import Sequence
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
from minigpt.storage.checkpoint import CONFIG
from minigpt.storage.files import atomic_json, read_json
from minigpt.storage.huggingface import from_huggingface

_LLAMA_SECONDS = 600  # for a text, or some 60 ids, in at most 2 GB


class NotRunError(CheckpointError):
    """A program could not be run at all, which says nothing of the file; the message is the reason."""


def gguf_in_torch(path: Path) -> tuple[Run, Tokenize]:
    """A GGUF file, read back into PyTorch."""
    foreign = open_gguf(path)
    try:
        model = from_huggingface(foreign.tensors, foreign.config)
    finally:
        foreign.tensors.close()

    @torch.no_grad()
    def run(ids: Sequence[int]) -> Tensor:
        return model(torch.tensor([ids]))[0]

    return run, foreign.tokenizer.encode


def gguf_in_llama(path: Path) -> tuple[Run, Tokenize]:
    """A GGUF file in llama.cpp, in a process of its own: it aborts at what it does not like, and is talkative.

    Raises (when called): CheckpointError where llama.cpp cannot use the file, NotRunError where it does not run.
    """

    def ask(question: str | Sequence[int]) -> Any:
        # By its path and with -P, so that no json.py in the working directory is taken for Python's own.
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
            reason = (done.stderr.decode(errors="replace").strip().splitlines() or ["it says nothing"])[-1]
            raise CheckpointError(f"llama.cpp cannot use the file ({reason})")
        return np.load(io.BytesIO(done.stdout))

    return lambda ids: torch.from_numpy(ask(ids)), lambda text: ask(text).tolist()


def onnx_in_onnxruntime(folder: Path, config: GPTConfig) -> Run:
    """An ONNX graph in onnxruntime: the first half of the ids at once, the others one by one, through its memory."""
    import onnxruntime

    session = onnxruntime.InferenceSession(folder / ONNX_MODEL, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()][1:]
    nothing = np.zeros((1, config.n_head, 0, config.head_width), np.float32)

    def run(ids: Sequence[int]) -> Tensor:
        memory: dict[str, Any] = {name.replace("present", "past_key_values"): nothing for name in names}
        half = (len(ids) + 1) // 2
        logits = []
        for start, end in [(0, half), *((i, i + 1) for i in range(half, len(ids)))]:
            inputs = {
                "input_ids": np.array([ids[start:end]], np.int64),
                "attention_mask": np.ones((1, end), np.int64),
                "position_ids": np.arange(start, end, dtype=np.int64)[None],
            }
            result, *present = session.run(None, inputs | memory)
            memory = dict(zip(memory, present, strict=True))
            logits.append(torch.from_numpy(result[0]))  # (end - start, V)
        return torch.cat(logits)

    return run


def convert_to_ctranslate2(directory: Path, folder: Path, config: GPTConfig, dtype: str) -> None:
    """Fills a folder by CTranslate2's own converter, which reads a checkpoint as the Hugging Face model that it is.

    It forgets the epsilon of the layer norms, for which the runtime then takes 1e-5.
    """
    from ctranslate2.converters import TransformersConverter
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    TransformersConverter(str(directory)).convert(str(folder), quantization=dtype, force=True)
    settings = read_json(folder / CONFIG)
    atomic_json(folder / CONFIG, settings | {"layer_norm_epsilon": config.layer_norm_epsilon})


def model_in_ctranslate2(folder: Path) -> Run:
    """A model in CTranslate2, in the arithmetic of its weights where the CPU has it."""
    import ctranslate2

    generator = ctranslate2.Generator(str(folder), device="cpu")

    def run(ids: Sequence[int]) -> Tensor:
        logits = generator.forward_batch([list(ids)], return_log_probs=False)
        return torch.from_numpy(np.array(logits, dtype=np.float32))[0]

    return run
