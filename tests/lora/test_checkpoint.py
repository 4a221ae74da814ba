"""Adapters saved where something else was."""

from pathlib import Path

import pytest
import torch
from builders import new_model

from minigpt.config import GPTConfig, TrainConfig
from minigpt.errors import CheckpointError, FolderTakenError
from minigpt.lora.fine_tuning import apply_fine_tuning
from minigpt.model.gpt import GPT
from minigpt.storage.adapters import is_adapter
from minigpt.storage.checkpoint import (
    load_checkpoint,
    save_checkpoint,
)
from minigpt.tokenizer.tokenizer import Tokenizer

CONFIG = GPTConfig(vocab_size=257, n_positions=8, n_embd=12, n_layer=2, n_head=3, dropout=0.2)
BYTES = Tokenizer.named("bytes")
FILES = [
    "README.md",
    "config.json",
    "generation_config.json",
    "merges.txt",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
]


def model(seed: int = 0) -> GPT:
    return new_model(CONFIG, seed=seed)


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def same_weights(left: GPT, right: GPT) -> bool:
    return all(torch.equal(tensor, right.state_dict()[name]) for name, tensor in left.state_dict().items())


def adapted() -> GPT:
    with_adapter = model()
    apply_fine_tuning(with_adapter, TrainConfig(lora=True, lora_rank=2))
    return with_adapter


def test_a_whole_model_saved_over_an_adapter_leaves_nothing_of_it(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "one", adapted(), BYTES)
    assert is_adapter(tmp_path / "one")
    save_checkpoint(tmp_path / "one", model(1), BYTES)
    assert files_in(tmp_path / "one") == FILES
    assert same_weights(load_checkpoint(tmp_path / "one", "cpu").model, model(1))


def test_an_adapter_is_not_saved_over_a_whole_model_which_may_be_its_base(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "one", model(), BYTES)
    with pytest.raises(CheckpointError, match=rf"^{tmp_path}/one holds a whole model, .*; save the adapter in another"):
        save_checkpoint(tmp_path / "one", adapted(), BYTES)
    assert files_in(tmp_path / "one") == FILES
    with pytest.raises(FolderTakenError):
        save_checkpoint(tmp_path / "one", adapted(), BYTES, new=True)
