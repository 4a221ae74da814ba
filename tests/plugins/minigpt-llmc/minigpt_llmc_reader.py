"""Reads checkpoints of llm.c (train_gpt2.py, write_model): a header of 256 integers, then float32 weights."""

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from minigpt.config import GPTConfig
from minigpt.errors import CheckpointError
from minigpt.pretrained.imported_model import ImportedModel, WeightReader, check_vocabulary, lazy_tensors
from minigpt.storage.huggingface import stored_tensors
from minigpt.storage.tensors import TensorSource
from minigpt.tokenizer.tokenizer import Tokenizer

_MAGIC, _FLOAT32 = 20240326, 3
_HEADER = 256  # integers
_OF_BLOCKS = (
    "ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight", "attn.c_proj.bias",
    "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight", "mlp.c_proj.bias",
)  # fmt: skip


def _matches(path: Path, start: bytes) -> bool:
    return start[:4] == np.int32(_MAGIC).tobytes()


def _open(path: Path, ids_only: bool) -> ImportedModel:
    header = np.fromfile(path, np.int32, _HEADER)
    if len(header) < _HEADER or header[1] != _FLOAT32:
        raise CheckpointError(f"{path} is damaged, or its weights are not float32; write it with llm.c again")
    positions, vocab_size, layers, heads, width, padded = (int(number) for number in header[2:8])
    config = GPTConfig(
        n_positions=positions, vocab_size=vocab_size, n_layer=layers, n_head=heads, n_embd=width
    )  # fmt: skip
    shapes = {each.stored_name: each.shape for each in stored_tensors(config)}
    offsets, end = {}, 0
    # The embeddings, of which that of the tokens is padded; each weight of all blocks after another; the last norm.
    order = ["wte.weight", "wpe.weight"]
    order += [f"h.{layer}.{name}" for name in _OF_BLOCKS for layer in range(layers)]
    for name in [*order, "ln_f.weight", "ln_f.bias"]:
        offsets[name] = end
        end += padded * width if name == "wte.weight" else math.prod(shapes[name])
    if path.stat().st_size != 4 * (_HEADER + end):
        raise CheckpointError(
            f"{path} is {path.stat().st_size:,} bytes long, not {4 * (_HEADER + end):,}; copy it again"
        )
    weights = np.memmap(path, np.float32, "c", 4 * _HEADER)

    def read(name: str, _: bool) -> Tensor:
        return torch.from_numpy(weights[offsets[name] :][: math.prod(shapes[name])]).clone()

    tensors = lazy_tensors(config, {name: name for name in shapes}, read, transposes=True)
    tokenizer = Tokenizer.named("gpt2")
    notes = check_vocabulary(tokenizer, config, path)
    return ImportedModel(config, TensorSource(path, tensors, lambda: None), tokenizer, tuple(notes))


READERS = (WeightReader(matches=_matches, read=_open, files=("llm.c's .bin",)),)
