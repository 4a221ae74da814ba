"""Saves, loads and finds checkpoints.

A checkpoint is a Hugging Face GPT-2 directory: config.json, model.safetensors, generation_config.json, the tokenizer's
files and README.md, the model card. A run's directory also has its record, training.json.
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from minigpt.config import GPTConfig
from minigpt.device import resolve_device
from minigpt.edges import provided
from minigpt.errors import CheckpointError, ConfigError
from minigpt.model.gpt import GPT
from minigpt.storage.adapters import adapter_of, is_adapter
from minigpt.storage.files import atomic_folder, exists, json_bytes, modified, read_json
from minigpt.storage.folder import Content, Folder
from minigpt.storage.huggingface import (
    config_from_huggingface,
    config_to_huggingface,
    from_huggingface,
    to_huggingface,
)
from minigpt.storage.names import ADAPTER_CONFIG, ADAPTER_WEIGHTS, CARD
from minigpt.storage.names import CONFIG as CONFIG
from minigpt.storage.names import GENERATION_CONFIG as GENERATION_CONFIG
from minigpt.storage.names import TRAINING as TRAINING
from minigpt.storage.names import WEIGHTS as WEIGHTS
from minigpt.storage.run_record import RunRecord
from minigpt.storage.shipped_models import find_shipped, shipped_models
from minigpt.storage.tensors import TensorFile, tensor_content, whole
from minigpt.tokenizer.files import tokenizer_files
from minigpt.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class Checkpoint:
    """A model, its tokenizer, and the directory they were loaded from."""

    directory: Path
    model: GPT
    tokenizer: Tokenizer

    @property
    def training(self) -> dict[str, Any] | None:
        """The content of training.json, None without one. It is read only here: a model generates text without it.

        Raises: CheckpointError if it is not JSON.
        """
        path = self.directory / TRAINING
        return read_json(path) if path.exists() else None

    @property
    def record(self) -> RunRecord | None:
        """The record of the run that trained the model; None if training.json is missing or not a run's.

        Raises: CheckpointError if it is damaged.
        """
        return _run_record(self.training, self.directory / TRAINING)


def _run_record(training: Mapping[str, Any] | None, path: Path) -> RunRecord | None:
    """The record of a run; None for a training.json without a format, which a user wrote."""
    return RunRecord.from_dict(training, path) if training and "format" in training else None


def save_checkpoint(
    directory: str | Path,
    model: GPT,
    tokenizer: Tokenizer,
    training: RunRecord | Mapping[str, Any] | None = None,
    *,
    dtype: torch.dtype | None = None,
    metadata: Mapping[str, str] | None = None,
    origin: str | None = None,
    notes: Sequence[str] = (),
    new: bool = False,
    read: Callable[[Tensor], Tensor] = whole,
) -> Path:
    """Saves a model and its tokenizer as a checkpoint; `dtype` is by default that of the weights.

    `metadata` goes into the weights' file. `origin`, the source of an imported model, and `notes` about the import go
    into the model card. A new directory appears complete. In an existing one every file is replaced atomically after
    all are written, and the rest of an adapter or another tokenizer is removed; a model card that was edited stays. For
    `read` see `tensor_content`.
    Raises: CheckpointError if it cannot be written, its context length is too long for it to be loaded again, or it is
    an adapter and the directory holds a whole model; FolderTakenError if `new` is set and the directory exists; what
    was there before is then unchanged.
    """
    directory = Path(directory)
    if not directory.name:
        directory = directory.resolve()
    try:
        model.config.check_positions()
    except ConfigError as error:
        raise CheckpointError(f"{directory} is not written: {error}") from error
    if adapter_of(model) is not None and not new and exists(directory / WEIGHTS):
        raise CheckpointError(
            f"{directory} holds a whole model, which may be the base model of this adapter; save the adapter in another"
            " folder"
        )
    entries = training.to_dict() if isinstance(training, RunRecord) else training
    # The files of an adapter or another tokenizer, which minigpt or transformers would read instead of the new model's.
    contradicting = (ADAPTER_CONFIG, ADAPTER_WEIGHTS, *tokenizer_files())
    with atomic_folder(directory, new=new, obsolete=contradicting) as building:
        record = _run_record(entries, directory / TRAINING)
        weights, content = weights_file(model, record, metadata, dtype=dtype, read=read)
        files: dict[str, Content | None] = {
            **config_files(model, tokenizer, record, dtype=dtype),
            weights: content,
            TRAINING: None if entries is None else json_bytes(entries),
            CARD: model_card(directory, model.config, record, tokenizer=tokenizer.name, origin=origin, notes=notes),
        }
        tokenizer.save(building)
        folder = Folder(building)
        for name, each in files.items():
            if each is not None:
                folder.write(name, each, durable=False)  # which they become together
    return directory


def model_card(
    directory: Path,
    config: GPTConfig | None,
    record: RunRecord | None,
    *,
    tokenizer: str | None = None,
    origin: str | None = None,
    notes: Sequence[str] = (),
) -> bytes | None:
    """The README.md of a model (the seam `model_card`); None if no edge writes one, or someone has edited it.

    Without a `config`, that in the directory is described.
    """
    for card in provided("model_card"):
        return cast(
            bytes | None, card(directory, config, tokenizer=tokenizer, record=record, origin=origin, notes=notes)
        )
    return None


def config_files(
    model: GPT, tokenizer: Tokenizer, record: RunRecord | None = None, *, dtype: torch.dtype | None = None
) -> dict[str, bytes]:
    """The configs of a model and of its adapter, by the names of their files; `dtype` is that of the saved weights."""
    config = config_to_huggingface(
        model.config,
        end_of_text=tokenizer.end_of_text,
        dtype=dtype or model.token_embedding.weight.dtype,
        start_of_text=tokenizer.special_id("bos_token"),
    )
    first, *others = tokenizer.end_ids  # where a generated text ends
    generation = {
        "bos_token_id": tokenizer.special_id("bos_token"),
        "eos_token_id": [first, *others] if others else first,
        "pad_token_id": tokenizer.special_id("pad_token"),
    } | ({"suppress_tokens": [*tokenizer.suppressed_ids]} if tokenizer.suppressed_ids else {})
    files = {CONFIG: config, GENERATION_CONFIG: generation}
    if (adapter := adapter_of(model)) is not None:
        files[ADAPTER_CONFIG] = adapter.config(model, record.adapter_base if record else None)
    return {name: json_bytes(values) for name, values in files.items()}


def weights_file(
    model: GPT,
    record: RunRecord | None = None,
    metadata: Mapping[str, str] | None = None,
    *,
    dtype: torch.dtype | None = None,
    read: Callable[[Tensor], Tensor] = whole,
) -> tuple[str, Content]:
    """The name and the content of the file of a model's weights, or only of those of its adapter, if it has one.

    For `read` see `tensor_content`.
    """
    if (adapter := adapter_of(model)) is not None:
        base = record.adapter_base if record else None
        return ADAPTER_WEIGHTS, adapter.weights(model, base, metadata or {})
    # transformers opens only files whose metadata name the framework
    return WEIGHTS, tensor_content(to_huggingface(model, dtype), {"format": "pt", **(metadata or {})}, read)


def load_checkpoint(
    directory: str | Path, device: str = "auto", *, dtype: torch.dtype = torch.float32, mapped: bool = False
) -> Checkpoint:
    """The checkpoint in a directory, its model in eval mode on the device; for `mapped` see `from_huggingface`.

    Raises: CheckpointError if it is missing, damaged, or not a GPT-2; TokenizerError; DeviceError.
    """
    directory = Path(directory)
    target = resolve_device(device)
    if is_adapter(directory):
        raise CheckpointError(
            f"{directory} holds an adapter, not a whole model; minigpt.load() adds it to its base model"
        )
    config = read_config(directory)
    tokenizer = Tokenizer.load(directory)
    if tokenizer.vocab_size > config.vocab_size:
        raise CheckpointError(
            f"the tokenizer in {directory} has {tokenizer.vocab_size} tokens but its model only {config.vocab_size};"
            " they do not belong together"
        )
    with TensorFile(directory / WEIGHTS) as file:
        model = from_huggingface(file, config, device=target, dtype=dtype, mapped=mapped)
    return Checkpoint(directory, model, tokenizer)


def read_config(directory: str | Path) -> GPTConfig:
    """The config of the model in a directory; its weights are not read.

    Raises: CheckpointError if config.json is missing, damaged, or not a GPT-2's.
    """
    directory = Path(directory)
    path = directory / CONFIG
    if not exists(path):
        what = f"has no {CONFIG}" if directory.is_dir() else "does not exist"
        raise CheckpointError(f"{directory} {what}, so it is not a checkpoint")
    return config_from_huggingface(read_json(path), path)


def find_checkpoint(name: str | Path | None, checkpoints: str | Path) -> Path:
    """The directory of a checkpoint: `name` in `checkpoints`, else the directory `name`, else a shipped model.

    None finds the checkpoint whose weights are newest.
    Raises: CheckpointError if there is none; the message names those that exist, or how to get one.
    """
    checkpoints = Path(checkpoints)
    folders = [
        path.parent
        for file in (WEIGHTS, ADAPTER_WEIGHTS)
        for path in checkpoints.glob(f"*/{file}")
        if not path.parent.name.startswith(".")
    ]
    if name is None and folders:
        return max(folders, key=_written)
    if name is not None and str(name):  # "" would be the working directory
        for directory in (checkpoints / name, Path(name)):
            if any(exists(directory / file) for file in (CONFIG, WEIGHTS, ADAPTER_CONFIG)):
                return directory
    if shipped := find_shipped(name):
        return shipped.directory
    names = sorted([*(folder.name for folder in folders), *(model.name for model in shipped_models())])
    if not names:
        what = f"no model in {checkpoints}" if name is None else f"no model {str(name)!r}, and none in {checkpoints}"
        raise CheckpointError(f"{what}; train one with `minigpt train corpus.txt` or get one with `minigpt load-gpt2`")
    close = difflib.get_close_matches(str(name), names, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"available: {', '.join(names)}"
    raise CheckpointError(f"no model {str(name)!r} in {checkpoints}; {hint}")


def _written(folder: Path) -> float:
    """When the weights of a model were last written, in seconds since 1970."""
    return max(modified(folder / name) for name in (WEIGHTS, ADAPTER_WEIGHTS))


def free_name(name: str, checkpoints: str | Path) -> str:
    """`name` if it is free in `checkpoints`, else the first free one of NAME-2, NAME-3, …"""
    checkpoints, free, number = Path(checkpoints), name, 1
    while exists(checkpoints / free):
        number += 1
        free = f"{name}-{number}"
    return free
