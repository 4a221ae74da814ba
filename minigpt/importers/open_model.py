"""Which format stands at a path, and the model in it: the one place that knows them all."""

import contextlib
from pathlib import Path
from typing import Any, NamedTuple

import torch

from minigpt.config import GPTConfig
from minigpt.device import resolve_device
from minigpt.errors import CheckpointError
from minigpt.importers.hub import is_hub_name
from minigpt.importers.huggingface import open_huggingface, scales_attention
from minigpt.importers.imported_model import ImportedModel
from minigpt.importers.nanogpt import CHECKPOINT, is_nanogpt, open_nanogpt
from minigpt.importers.sharded import ShardedTensors
from minigpt.importers.tensorflow import HPARAMS, INDEX, LATEST, open_tensorflow
from minigpt.importers.torch_file import TorchTensors, is_torch_file, open_torch
from minigpt.importers.vocabulary_check import fit
from minigpt.storage.checkpoint import (
    CONFIG,
    TRAINING,
    WEIGHTS,
    Checkpoint,
    find_checkpoint,
    load_checkpoint,
    read_config,
)
from minigpt.storage.files import exists, read_json
from minigpt.storage.huggingface import TensorSource, from_huggingface, left_out
from minigpt.storage.tensors import TensorFile
from minigpt.tokenizer.tokenizer import Tokenizer

TOKENIZER = "tokenizer.json"
# What a folder may hold, the best first.
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


class Opened(NamedTuple):
    """A model ready for use, and sentences on what was made of its file."""

    checkpoint: Checkpoint
    notes: tuple[str, ...]


def find_model(name: str | Path | None, checkpoints: str | Path) -> Path:
    """The place of a model: a checkpoint of that name, as `find_checkpoint` has it, or a path to one of any format.

    Raises: CheckpointError where there is none, saying what there is.
    """
    if name is None or not str(name):
        return find_checkpoint(name, checkpoints)
    named = Path(checkpoints) / name
    is_path, is_named = exists(Path(name)), exists(named / CONFIG) or exists(named / WEIGHTS)
    if is_path and not is_named:
        return Path(name)
    if not is_named and is_hub_name(str(name)):
        raise CheckpointError(
            f"no model {str(name)!r} in {checkpoints}, nor at that path; if the hub has it, `minigpt load-gpt2 {name}`"
            " gets it"
        )
    return find_checkpoint(name, checkpoints)


def load_model(path: Path, device: str = "auto", *, dtype: torch.dtype = torch.float32, mapped: bool = False) -> Opened:
    """The model at a path, of any format, in eval mode on the device; `mapped` as `from_huggingface` has it.

    Raises: CheckpointError where it is missing, damaged or not a GPT-2; TokenizerError; DeviceError.
    """
    if is_checkpoint(path):
        checkpoint = load_checkpoint(path, device, dtype=dtype, mapped=mapped)
        return Opened(checkpoint, _notes_on(path, checkpoint.model.config, checkpoint.tokenizer))
    target = resolve_device(device)
    foreign = open_imported(path)
    with contextlib.closing(foreign.tensors):
        model = from_huggingface(foreign.tensors, foreign.config, device=target, dtype=dtype, mapped=mapped)
    return Opened(Checkpoint(path, model, foreign.tokenizer, None), foreign.notes)


def describe_model(path: Path) -> tuple[GPTConfig, Tokenizer, tuple[str, ...]]:
    """The shape and the words of the model at a path, of any format, and sentences on what was made of its file.

    A run whose weights are not there, or not yet, has both too.
    Raises: as `load_model`.
    """
    if is_checkpoint(path) or exists(path / TRAINING):
        config, tokenizer = read_config(path), Tokenizer.load(path)
        return config, tokenizer, _notes_on(path, config, tokenizer)
    foreign = open_imported(path)
    foreign.tensors.close()
    return foreign.config, foreign.tokenizer, foreign.notes


def _notes_on(path: Path, config: GPTConfig, tokenizer: Tokenizer) -> tuple[str, ...]:
    """What is to be said of a folder that minigpt might have written, and that others write as well."""
    notes = fit(tokenizer, config, path)
    if exists(path / WEIGHTS):
        with TensorFile(path / WEIGHTS) as file:  # the header alone
            notes += left_out(file)
    return tuple(notes)


def is_checkpoint(path: Path) -> bool:
    """Whether a folder is one as minigpt writes it, so far as its files' names and its config.json tell."""
    files = [path / name for name in (CONFIG, WEIGHTS, TOKENIZER)]
    return all(exists(file) for file in files) and not scales_attention(read_json(path / CONFIG))


def open_imported(path: Path) -> ImportedModel:
    """The model at a path, whatever its format, opened and not yet read; its tensors are the caller's to close.

    Raises: CheckpointError where it is missing, damaged, of no known format or not a GPT-2; TokenizerError.
    """
    if not exists(path):
        raise CheckpointError(f"{path} is not there; give {_FORMS}")
    try:
        if path.is_dir():
            found = _in_folder(path)
            return open_tensorflow(path) if found.name == HPARAMS or found.suffix == INDEX else open_imported(found)
        if not path.is_file():  # to open a pipe would wait for whoever writes to it
            raise CheckpointError(f"{path} is neither a folder nor a file of its own; give {_FORMS}")
        with path.open("rb") as file:
            start = file.read(8)
    except CheckpointError:  # an OSError too, and explained already
        raise
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}); give {_FORMS}") from error
    if start.startswith(b"GGUF"):
        from minigpt.importers.gguf import open_gguf

        return open_gguf(path)
    if is_torch_file(start):
        content = open_torch(path)
        if is_nanogpt(content):
            return open_nanogpt(path, content)
        return _closing(path, TorchTensors(path, _weights_in(path, content)))
    if path.name in (HPARAMS, LATEST):
        return open_tensorflow(path.parent)
    if path.suffix == INDEX:
        return open_tensorflow(path)
    if path.name.endswith(_SHARDS):
        return _closing(path, ShardedTensors(path, _open_shard))
    if path.suffix != ".safetensors" and (start[:1] in b"{<" or not _could_be_safetensors(path, start)):
        raise CheckpointError(f"{path} is of no format that is known here; give {_FORMS}")
    return _closing(path, TensorFile(path))


def _in_folder(folder: Path) -> Path:
    """The file of a folder that stands for its model.

    Raises: CheckpointError where there is none, or several that it could be.
    """
    for name in _IN_FOLDERS:
        if exists(folder / name):
            if "safetensors" in name and not exists(folder / CONFIG):
                raise CheckpointError(f"{folder} has no {CONFIG}; put it beside {name}, or give that file itself")
            return folder / name
    if indices := sorted(folder.glob(f"*{INDEX}")):  # which of several, `open_tensorflow` knows
        return indices[0]
    for pattern in _ALONE:
        found = sorted(folder.glob(pattern))
        if len(found) > 1:
            names = ", ".join(path.name for path in found[:3]) + (", …" if len(found) > 3 else "")
            raise CheckpointError(f"{folder} holds several models ({names}); give one of these files")
        if found:
            return found[0]
    held = ", ".join(sorted(path.name for path in folder.iterdir())[:5]) or "nothing"
    raise CheckpointError(f"{folder} holds no model, but {held}; give {_FORMS}")


def _closing(weights: Path, tensors: TensorSource) -> ImportedModel:
    """A model of Hugging Face's around its open tensors, which are closed again where it cannot be opened."""
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
    """The weights of what torch.save wrote: all of it, or what a trainer put them under."""
    if isinstance(content, dict):
        for under in ("state_dict", "model", "model_state_dict"):
            if isinstance(content.get(under), dict):
                return dict(content[under])
        return dict(content)
    raise CheckpointError(f"{path} holds a {type(content).__name__}, expected weights by their names")


def _could_be_safetensors(path: Path, start: bytes) -> bool:
    """Whether a file whose name does not say so begins as safetensors do: with a header's length, and the header."""
    return len(start) == 8 and 2 <= int.from_bytes(start, "little") <= path.stat().st_size - 8
