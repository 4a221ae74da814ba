"""Randomly damaged files of every format: each is read, or refused with a one-line error."""

import contextlib
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import new_model

from minigpt.config import GPTConfig
from minigpt.importers.open_model import open_model
from minigpt.importers.plain_pickle import read_plain_pickle
from minigpt.storage.checkpoint import save_checkpoint
from minigpt.storage.huggingface import from_huggingface, to_huggingface
from minigpt.storage.tensors import save_tensors
from minigpt.tokenizer.tokenizer import Tokenizer

CONFIG = GPTConfig(vocab_size=257, n_positions=8, n_embd=12, n_layer=2, n_head=3)
FEW, MANY = 40, 4000


def write_safetensors(folder: Path) -> Path:
    return folder / "model.safetensors"


def write_config(folder: Path) -> Path:
    return folder / "config.json"


def write_tokenizer(folder: Path) -> Path:
    return folder / "tokenizer.json"


def write_bin(folder: Path, *, zipped: bool) -> Path:
    weights = {name: tensor.contiguous() for name, tensor in to_huggingface(new_model(CONFIG)).items()}
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    return folder / "pytorch_model.bin"


def write_shards(folder: Path) -> Path:
    weights = to_huggingface(new_model(CONFIG))
    (folder / "model.safetensors").unlink()
    file_of = {}
    for number in (1, 2):
        name = f"model-0000{number}-of-00002.safetensors"
        part = dict(list(weights.items())[number - 1 :: 2])
        save_tensors(folder / name, part)
        file_of |= dict.fromkeys(part, name)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": file_of}))
    return index


def write_nanogpt(folder: Path) -> Path:
    """Writes a checkpoint over five characters like nanoGPT's train.py."""
    for path in folder.iterdir():
        path.unlink()
    c, vocab_size = 12, 5
    torch.manual_seed(0)
    shapes = {"wte.weight": (vocab_size, c), "wpe.weight": (8, c), "ln_f.weight": (c,)}
    shapes |= {"h.0.ln_1.weight": (c,), "h.0.ln_2.weight": (c,), "h.0.attn.c_attn.weight": (3 * c, c)}
    shapes |= {"h.0.attn.c_proj.weight": (c, c), "h.0.mlp.c_fc.weight": (4 * c, c), "h.0.mlp.c_proj.weight": (c, 4 * c)}
    model = {f"_orig_mod.transformer.{name}": torch.randn(shape) for name, shape in shapes.items()}
    model["_orig_mod.lm_head.weight"] = model["_orig_mod.transformer.wte.weight"]
    arguments = {
        "n_layer": 1,
        "n_head": 3,
        "n_embd": c,
        "block_size": 8,
        "bias": False,
        "vocab_size": vocab_size,
        "dropout": 0.0,
    }
    content = {
        "model": model,
        "optimizer": {"state": {}},
        "model_args": arguments,
        "iter_num": 5,
        "config": {"dataset": "x"},
    }
    torch.save(content, folder / "ckpt.pt")
    itos = dict(enumerate("abcde"))
    (folder / "meta.pkl").write_bytes(
        pickle.dumps({"vocab_size": vocab_size, "itos": itos, "stoi": {c: i for i, c in itos.items()}})
    )
    return folder / "ckpt.pt"


def write_meta(folder: Path) -> Path:
    write_nanogpt(folder)
    return folder / "meta.pkl"


FORMS: dict[str, Callable[[Path], Path]] = {
    "safetensors": write_safetensors,
    "config.json": write_config,
    "tokenizer.json": write_tokenizer,
    "bin, zip format": lambda folder: write_bin(folder, zipped=True),
    "bin, old format": lambda folder: write_bin(folder, zipped=False),
    "index.json": write_shards,
    "ckpt.pt": write_nanogpt,
    "meta.pkl": write_meta,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_checkpoint(tmp_path / "model", new_model(CONFIG), Tokenizer.named("bytes"))


def read(folder: Path) -> None:
    imported = open_model(folder)
    with contextlib.closing(imported.tensors):
        from_huggingface(imported.tensors, imported.config)


@pytest.mark.parametrize("form", FORMS)
def test_a_damaged_file_is_read_or_refused_with_a_one_line_error(folder: Path, fuzz: Any, form: str) -> None:
    damaged = FORMS[form](folder)
    read(folder)
    counts = fuzz(damaged, lambda: read(folder), FEW)
    assert counts["refused"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_thousands_of_damaged_files_are_read_or_refused(folder: Path, fuzz: Any, form: str) -> None:
    damaged = FORMS[form](folder)
    counts = fuzz(damaged, lambda: read(folder), MANY, seed=1)
    assert sum(counts.values()) == MANY


def test_a_damaged_plain_pickle_is_read_or_refused(tmp_path: Path, fuzz: Any) -> None:
    path = tmp_path / "values.pkl"
    path.write_bytes(pickle.dumps({"itos": {1: "a", 2: "b"}, "n": 2**70}))
    counts = fuzz(path, lambda: read_plain_pickle(path.read_bytes(), path), 300)
    assert counts["refused"] > 0
