"""Finds, opens and loads models of any supported format."""

from pathlib import Path
from typing import NamedTuple

import torch

from minigpt.bounded_reading import open_regular
from minigpt.config import GPTConfig
from minigpt.device import resolve_device
from minigpt.edges import not_installed
from minigpt.errors import CheckpointError
from minigpt.model.gpt import accelerate
from minigpt.pretrained.hub import is_hub_name
from minigpt.pretrained.huggingface import find_reader, scales_attention, weight_readers
from minigpt.pretrained.imported_model import ImportedModel, check_vocabulary
from minigpt.storage.adapters import adapter_format, is_adapter
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
from minigpt.storage.huggingface import from_huggingface, unused_heads
from minigpt.storage.names import ADAPTER_CONFIG, ADAPTER_WEIGHTS, PICKLED_ADAPTER, TEACHER
from minigpt.storage.shipped_models import find_shipped
from minigpt.storage.tensors import TensorFile
from minigpt.tokenizer.files import is_ids_only
from minigpt.tokenizer.tokenizer import Tokenizer

TOKENIZER = "tokenizer.json"
# Forms of transformers 4 that are not read, by suffix: whose they are, and the argument by which it reads them.
_OTHER_FORMS = {".h5": ("TensorFlow's (Keras) format", "from_tf"), ".msgpack": ("Flax's format", "from_flax")}
_HDF5 = b"\x89HDF\r\n\x1a\n"


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
    is_path = exists(Path(name))
    is_named = any(exists(named / file) for file in (CONFIG, WEIGHTS, ADAPTER_CONFIG)) or find_shipped(name) is not None
    if is_path and not is_named:
        return Path(name)
    if not is_named and is_hub_name(str(name)):
        raise CheckpointError(
            f"no model {str(name)!r} in {checkpoints}, and no such path; if the hub has it, import it with"
            f" `minigpt load-gpt2 {name}`"
        )
    return find_checkpoint(name, checkpoints)


def load_model(
    path: Path,
    device: str = "auto",
    *,
    dtype: torch.dtype = torch.float32,
    mapped: bool = False,
    checkpoints: Path | None = None,
    base: Path | None = None,
) -> LoadedModel:
    """The model at a path, of any format, in eval mode on the device; for `mapped` see `from_huggingface`.

    An adapter is merged into its base model: `base`, or the one that it names, which is also looked for in
    `checkpoints`.
    Raises: CheckpointError if it is missing, damaged or not a GPT-2; TokenizerError; DeviceError.
    """
    loaded = _load(path, device, dtype=dtype, mapped=mapped, checkpoints=checkpoints, base=base)
    accelerate(loaded.checkpoint.model)
    return loaded


def _load(
    path: Path, device: str, *, dtype: torch.dtype, mapped: bool, checkpoints: Path | None, base: Path | None
) -> LoadedModel:
    if is_adapter(path):
        model, tokenizer, notes = adapter_format().load(path, resolve_device(device), dtype, checkpoints, base)
        return LoadedModel(Checkpoint(path, model, tokenizer), notes)
    if base is not None:
        raise CheckpointError(f"{path} is not an adapter, so it cannot be added to {base}; give it as --model")
    if is_checkpoint(path):
        checkpoint = load_checkpoint(path, device, dtype=dtype, mapped=mapped)
        return LoadedModel(checkpoint, _notes_on(path, checkpoint.model.config, checkpoint.tokenizer))
    target = resolve_device(device)
    imported = open_model(path)
    with imported.tensors:
        model = from_huggingface(imported.tensors, imported.config, device=target, dtype=dtype, mapped=mapped)
    return LoadedModel(Checkpoint(path, model, imported.tokenizer), imported.notes)


def find_adapted(
    name: str | Path | None, adapter: str | Path | None, checkpoints: str | Path
) -> tuple[Path, Path | None]:
    """The path of a model, or that of the `adapter` to be added to it, and that of its base if it is named.

    Raises: CheckpointError, as `find_model`, and if `adapter` is a whole model.
    """
    if adapter is None:
        return find_model(name, checkpoints), None
    path = find_model(adapter, checkpoints)
    if not is_adapter(path):
        raise CheckpointError(f"adapter ({adapter}) is a whole model, not an adapter; give it as --model")
    return path, None if name is None else find_model(name, checkpoints)


def describe_model(path: Path, checkpoints: Path | None = None) -> tuple[GPTConfig, Tokenizer, tuple[str, ...]]:
    """The config and the tokenizer of the model at a path, of any format, with notes on them; reads no weights.

    Works for a run without weights, too. The base model of an adapter is looked for as by `load_model`.
    Raises: as `load_model`.
    """
    if is_adapter(path) and not exists(path / TRAINING):
        return adapter_format().describe(path, checkpoints)
    if is_checkpoint(path) or exists(path / TRAINING):
        config, tokenizer = read_config(path), Tokenizer.load(path)
        return config, tokenizer, _notes_on(path, config, tokenizer)
    imported = open_model(path)
    imported.tensors.close()
    return imported.config, imported.tokenizer, imported.notes


def _notes_on(path: Path, config: GPTConfig, tokenizer: Tokenizer) -> tuple[str, ...]:
    """Notes on a checkpoint folder, which another program may have written, or a run whose training has not begun."""
    notes = check_vocabulary(tokenizer, config, path)
    if exists(path / WEIGHTS):
        with TensorFile(path / WEIGHTS) as file:  # reads only the header
            notes += unused_heads(file)
            is_initial = file.metadata.get("step", "0") == "0"
        if is_initial and exists(path / TEACHER / TRAINING):
            notes.append(
                f"the weights in {path} are still the initial ones, because its teacher is trained first; the teacher "
                f"is the model {path / TEACHER}"
            )
    return tuple(notes)


def is_checkpoint(path: Path) -> bool:
    """Whether a folder is a checkpoint as minigpt writes it, judged by its file names and its config.json."""
    if not all(exists(path / name) for name in (CONFIG, WEIGHTS)):
        return False
    return (exists(path / TOKENIZER) or is_ids_only(path)) and not scales_attention(read_json(path / CONFIG))


def open_model(path: Path, *, ids_only: bool = False) -> ImportedModel:
    """Opens the model at a path, of any format; reads no tensors yet. The caller must close its `tensors`.

    With `ids_only`, a Hugging Face model's tokenizer is not read; other formats have theirs.
    Raises: CheckpointError if it is missing, damaged, of no supported format or not a GPT-2; TokenizerError.
    """
    if not exists(path):
        raise CheckpointError(f"{path} does not exist; give {_forms()}")
    adapter = path.parent if path.name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS, PICKLED_ADAPTER) else path
    if is_adapter(adapter):
        raise CheckpointError(f"{adapter} is a LoRA adapter; make a whole model of it first: minigpt merge {adapter}")
    try:
        if path.is_dir():
            path = _find_in_folder(path)
        is_file, start = not path.is_dir(), b""
        if is_file:
            with open_regular(path) as file:
                start = file.read(8)
    except CheckpointError:  # is an OSError too, and already says what to do
        raise
    except OSError as error:
        raise CheckpointError(f"{read_error(path, error)}; give {_forms()}") from error
    if start == _HDF5 or (is_file and path.suffix in _OTHER_FORMS):
        raise _other_form(path, path.suffix if path.suffix in _OTHER_FORMS else ".h5")
    reader = find_reader(path, start)
    if reader is None:
        raise CheckpointError(f"{path} has no supported format; give {_forms()}")
    return reader.read(path, ids_only)


def _find_in_folder(folder: Path) -> Path:
    """The file in a folder that its model is opened by, or the folder itself."""
    readers = weight_readers()
    for name in (name for reader in readers for name in reader.hub_files):
        if exists(folder / name):
            if "safetensors" in name and not exists(folder / CONFIG):
                raise CheckpointError(f"{folder} has no {CONFIG}; put it next to {name}, or give {name} itself")
            return folder / name
    for reader in readers:
        if (path := reader.find(folder)) is not None:
            return path
    for pattern in (pattern for reader in readers for pattern in reader.single_files):
        found = sorted(folder.glob(pattern))
        if len(found) > 1:
            names = ", ".join(path.name for path in found[:3]) + (", …" if len(found) > 3 else "")
            raise CheckpointError(f"{folder} holds several models ({names}); give one of these files")
        if found:
            return found[0]
    for suffix in _OTHER_FORMS:
        if found := sorted(folder.glob(f"*{suffix}")):
            raise _other_form(found[0], suffix)
    content = ", ".join(sorted(path.name for path in folder.iterdir())[:5]) or "nothing"
    raise CheckpointError(f"{folder} holds no model (it holds {content}); give {_forms()}")


def _other_form(path: Path, suffix: str) -> CheckpointError:
    """The error for weights in a form that minigpt does not read."""
    form, argument = _OTHER_FORMS[suffix]
    return CheckpointError(
        f"{path} is in {form}, which minigpt does not read; convert it with transformers 4: "
        f"GPT2LMHeadModel.from_pretrained({str(path.parent)!r}, {argument}=True).save_pretrained('NEW_FOLDER')"
    )


def _forms() -> str:
    """What can be opened, for an error, and the edges that could open more."""
    folders = _either([each for reader in weight_readers() for each in reader.folders])
    files = _either([each for reader in weight_readers() for each in reader.files])
    absent = not_installed("weight_reader")
    return f"a folder of {folders}, or a {files} file" + (f"; {absent}" if absent else "")


def _either(names: list[str]) -> str:
    return " or ".join([*([", ".join(names[:-1])] if names[:-1] else []), names[-1]])
