"""Finds, opens and loads models of any supported format."""

import contextlib
from pathlib import Path
from typing import Any, NamedTuple

import torch

from minigpt.bounded_reading import open_regular
from minigpt.config import GPTConfig
from minigpt.device import resolve_device
from minigpt.errors import CheckpointError
from minigpt.importers.hub import is_hub_name
from minigpt.importers.huggingface import open_huggingface, scales_attention
from minigpt.importers.imported_model import ImportedModel, check_vocabulary
from minigpt.importers.nanogpt import CHECKPOINT, is_nanogpt, open_nanogpt
from minigpt.importers.sharded import ShardedTensors
from minigpt.importers.tensorflow import HPARAMS, INDEX, LATEST, open_tensorflow
from minigpt.importers.torch_file import TorchTensors, is_torch_file, open_torch
from minigpt.storage.checkpoint import (
    CONFIG,
    TRAINING,
    WEIGHTS,
    Checkpoint,
    find_checkpoint,
    load_checkpoint,
    read_config,
)
from minigpt.storage.files import exists, read_error, read_json
from minigpt.storage.huggingface import TensorSource, from_huggingface, unused_heads
from minigpt.storage.tensors import TensorFile
from minigpt.tokenizer.tokenizer import Tokenizer

TOKENIZER = "tokenizer.json"
# The files that a folder is recognized by, the preferred ones first.
_IN_FOLDERS = (
    WEIGHTS,
    f"{WEIGHTS}.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    HPARAMS,
    CHECKPOINT,
)
_ALONE = ("*.safetensors", "*.gguf", "*.bin", "*.pt", "*.pth")
_SHARDS = ".index.json"
_FORMS = (
    "a folder of Hugging Face's, nanoGPT's or OpenAI's, or a .safetensors, .index.json, pytorch_model.bin, ckpt.pt or"
    " .gguf file"
)


class LoadedModel(NamedTuple):
    """A model ready for use, and notes on what was assumed, skipped or converted."""

    checkpoint: Checkpoint
    notes: tuple[str, ...]


def find_model(name: str | Path | None, checkpoints: str | Path) -> Path:
    """The path of a model: a checkpoint, found as by `find_checkpoint`, or a file or folder of any format.

    Raises: CheckpointError if there is none; the message names those that exist.
    """
    if name is None or not str(name):
        return find_checkpoint(name, checkpoints)
    named = Path(checkpoints) / name
    is_path, is_named = exists(Path(name)), exists(named / CONFIG) or exists(named / WEIGHTS)
    if is_path and not is_named:
        return Path(name)
    if not is_named and is_hub_name(str(name)):
        raise CheckpointError(
            f"no model {str(name)!r} in {checkpoints}, and no such path; if the hub has it, import it with"
            f" `minigpt load-gpt2 {name}`"
        )
    return find_checkpoint(name, checkpoints)


def load_model(
    path: Path, device: str = "auto", *, dtype: torch.dtype = torch.float32, mapped: bool = False
) -> LoadedModel:
    """The model at a path, of any format, in eval mode on the device; for `mapped` see `from_huggingface`.

    Raises: CheckpointError if it is missing, damaged or not a GPT-2; TokenizerError; DeviceError.
    """
    if is_checkpoint(path):
        checkpoint = load_checkpoint(path, device, dtype=dtype, mapped=mapped)
        return LoadedModel(checkpoint, _notes_on(path, checkpoint.model.config, checkpoint.tokenizer))
    target = resolve_device(device)
    imported = open_model(path)
    with contextlib.closing(imported.tensors):
        model = from_huggingface(imported.tensors, imported.config, device=target, dtype=dtype, mapped=mapped)
    return LoadedModel(Checkpoint(path, model, imported.tokenizer), imported.notes)


def describe_model(path: Path) -> tuple[GPTConfig, Tokenizer, tuple[str, ...]]:
    """The config and the tokenizer of the model at a path, of any format, with notes on them; reads no weights.

    Works for a run without weights, too.
    Raises: as `load_model`.
    """
    if is_checkpoint(path) or exists(path / TRAINING):
        config, tokenizer = read_config(path), Tokenizer.load(path)
        return config, tokenizer, _notes_on(path, config, tokenizer)
    imported = open_model(path)
    imported.tensors.close()
    return imported.config, imported.tokenizer, imported.notes


def _notes_on(path: Path, config: GPTConfig, tokenizer: Tokenizer) -> tuple[str, ...]:
    """Notes on a checkpoint folder, which another program may have written."""
    notes = check_vocabulary(tokenizer, config, path)
    if exists(path / WEIGHTS):
        with TensorFile(path / WEIGHTS) as file:  # reads only the header
            notes += unused_heads(file)
    return tuple(notes)


def is_checkpoint(path: Path) -> bool:
    """Whether a folder is a checkpoint as minigpt writes it, judged by its file names and its config.json."""
    files = [path / name for name in (CONFIG, WEIGHTS, TOKENIZER)]
    return all(exists(file) for file in files) and not scales_attention(read_json(path / CONFIG))


def open_model(path: Path) -> ImportedModel:
    """Opens the model at a path, of any format; reads no tensors yet. The caller must close its `tensors`.

    Raises: CheckpointError if it is missing, damaged, of no supported format or not a GPT-2; TokenizerError.
    """
    if not exists(path):
        raise CheckpointError(f"{path} does not exist; give {_FORMS}")
    try:
        if path.is_dir():
            found = _find_in_folder(path)
            return open_tensorflow(path) if found.name == HPARAMS or found.suffix == INDEX else open_model(found)
        with open_regular(path) as file:
            start = file.read(8)
    except CheckpointError:  # is an OSError too, and already says what to do
        raise
    except OSError as error:
        raise CheckpointError(f"{read_error(path, error)}; give {_FORMS}") from error
    if start.startswith(b"GGUF"):
        from minigpt.importers.gguf import open_gguf

        return open_gguf(path)
    if is_torch_file(path, start):
        content = open_torch(path)
        if is_nanogpt(content):
            return open_nanogpt(path, content)
        return _open_or_close(path, TorchTensors(path, _weights_in(path, content)))
    if path.name in (HPARAMS, LATEST):
        return open_tensorflow(path.parent)
    if path.suffix == INDEX:
        return open_tensorflow(path)
    if path.name.endswith(_SHARDS):
        return _open_or_close(path, ShardedTensors(path, _open_shard))
    if path.suffix != ".safetensors" and (start[:1] in b"{<" or not _could_be_safetensors(path, start)):
        raise CheckpointError(f"{path} has no supported format; give {_FORMS}")
    return _open_or_close(path, TensorFile(path))


def _find_in_folder(folder: Path) -> Path:
    """The file in a folder that its model is opened by.

    Raises: CheckpointError if there is none, or several of equal rank.
    """
    for name in _IN_FOLDERS:
        if exists(folder / name):
            if "safetensors" in name and not exists(folder / CONFIG):
                raise CheckpointError(f"{folder} has no {CONFIG}; put it next to {name}, or give {name} itself")
            return folder / name
    if indices := sorted(folder.glob(f"*{INDEX}")):  # `open_tensorflow` chooses one of several
        return indices[0]
    for pattern in _ALONE:
        found = sorted(folder.glob(pattern))
        if len(found) > 1:
            names = ", ".join(path.name for path in found[:3]) + (", …" if len(found) > 3 else "")
            raise CheckpointError(f"{folder} holds several models ({names}); give one of these files")
        if found:
            return found[0]
    content = ", ".join(sorted(path.name for path in folder.iterdir())[:5]) or "nothing"
    raise CheckpointError(f"{folder} holds no model (it holds {content}); give {_FORMS}")


def _open_or_close(weights: Path, tensors: TensorSource) -> ImportedModel:
    """Opens a Hugging Face model with these tensors, and closes them if that fails."""
    try:
        return open_huggingface(weights, tensors)
    except BaseException:
        tensors.close()
        raise


def _open_shard(path: Path) -> TensorSource:
    if path.suffix == ".safetensors":
        return TensorFile(path)
    return TorchTensors(path, _weights_in(path, open_torch(path)))


def _weights_in(path: Path, content: object) -> dict[str, Any]:
    """The weights in an object from torch.save: the object itself, or the entry that trainers use for them."""
    if isinstance(content, dict):
        for key in ("state_dict", "model", "model_state_dict"):
            if isinstance(content.get(key), dict):
                return dict(content[key])
        return dict(content)
    raise CheckpointError(f"{path} holds a {type(content).__name__}, expected a dictionary of tensors")


def _could_be_safetensors(path: Path, start: bytes) -> bool:
    """Whether a file starts like safetensors, with the length of a header that fits into the file."""
    return len(start) == 8 and 2 <= int.from_bytes(start, "little") <= path.stat().st_size - 8
