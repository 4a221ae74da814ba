"""Finds, opens and loads models of any supported format."""

from pathlib import Path
from typing import NamedTuple

import torch

from minigpt.bounded_reading import open_regular
from minigpt.config import GPTConfig
from minigpt.device import resolve_device
from minigpt.errors import CheckpointError, FolderTakenError
from minigpt.importers.nanogpt import CHECKPOINT, is_nanogpt, open_nanogpt
from minigpt.importers.tensorflow import HPARAMS, INDEX, LATEST, open_tensorflow
from minigpt.importers.torch_file import is_torch_file, open_torch, torch_tensors
from minigpt.lora.adapter import is_adapter
from minigpt.lora.peft import PICKLED_ADAPTER, Adapter, check_base, find_base, merged, read_adapter
from minigpt.model.gpt import GPT, accelerate
from minigpt.pretrained.hub import is_hub_name
from minigpt.pretrained.huggingface import open_huggingface, open_sharded, scales_attention
from minigpt.pretrained.imported_model import ImportedModel, check_vocabulary
from minigpt.storage.checkpoint import (
    CONFIG,
    TRAINING,
    WEIGHTS,
    Checkpoint,
    find_checkpoint,
    load_checkpoint,
    read_config,
    save_checkpoint,
)
from minigpt.storage.files import exists, read_error, read_json
from minigpt.storage.huggingface import from_huggingface, unused_heads
from minigpt.storage.names import ADAPTER_CONFIG, ADAPTER_WEIGHTS, TEACHER
from minigpt.storage.run_record import AdapterBase
from minigpt.storage.tensors import TensorFile, TensorSource
from minigpt.tokenizer.files import has_tokenizer, is_ids_only
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
# Forms of transformers 4 that are not read, by suffix: whose they are, and the argument by which it reads them.
_OTHER_FORMS = {".h5": ("TensorFlow's (Keras) format", "from_tf"), ".msgpack": ("Flax's format", "from_flax")}
_HDF5 = b"\x89HDF\r\n\x1a\n"
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
    is_path = exists(Path(name))
    is_named = any(exists(named / file) for file in (CONFIG, WEIGHTS, ADAPTER_CONFIG))
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
        return _load_adapted(path, resolve_device(device), dtype, checkpoints, base)
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


def _load_adapted(
    path: Path, device: torch.device, dtype: torch.dtype, checkpoints: Path | None, base: Path | None
) -> LoadedModel:
    """An adapter's base model with the adapter merged into its weights, in float32 before they get the dtype."""
    adapter = read_adapter(path)
    base_path = base or find_base(path, adapter.base, checkpoints)
    _check_queries(adapter, base_path)
    loaded = _load_base(path, base_path, adapter.base_sha256, mapped=True)
    model = merged(loaded.checkpoint.model, adapter).to(device, dtype)
    of_base = (loaded.checkpoint.model.config, loaded.checkpoint.tokenizer, loaded.notes)
    _, tokenizer, notes = _describe_adapted(adapter, *of_base)
    if base is None and adapter.base_sha256 is None and base_path != Path(adapter.base or ""):
        notes += (
            f"the adapter was trained on {adapter.base} and has no hash of it; {base_path} was chosen by its name and"
            f" has a fitting shape; for another base: --model BASE --adapter {path}",
        )
    return LoadedModel(Checkpoint(path, model, tokenizer), notes)


def _describe_adapted(
    adapter: Adapter, config: GPTConfig, of_base: Tokenizer, notes: tuple[str, ...]
) -> tuple[GPTConfig, Tokenizer, tuple[str, ...]]:
    """What `describe_model` says of an adapter, from what it says of the base model.

    The tokenizer is the adapter's own, which also ends where the base model's does; without one, the base model's.
    """
    path = adapter.directory
    tokenizer = of_base
    if has_tokenizer(path):
        own = Tokenizer.load(path)
        tokenizer = own.with_end_ids((*own.end_ids, *of_base.end_ids))
    adapted = adapter.adapted(config)
    without_token = check_vocabulary(of_base, config, path)
    kept = [note for note in notes if note not in without_token]
    return adapted, tokenizer, (*kept, *check_vocabulary(tokenizer, adapted, path))


def _load_base(adapter: Path, path: Path, sha256: str | None, *, mapped: bool) -> LoadedModel:
    _check_whole(adapter, path)
    loaded = load_model(path, "cpu", mapped=mapped)
    check_base(adapter, sha256, loaded.checkpoint.model, path)
    return loaded


def _check_whole(adapter: Path, base: Path) -> None:
    """Raises CheckpointError if the base model of an adapter is an adapter too."""
    if is_adapter(base):
        raise CheckpointError(
            f"{base}, the base model of {adapter}, is an adapter itself; merge it first: minigpt merge {base}"
        )


def _check_queries(adapter: Adapter, base: Path) -> None:
    """Raises CheckpointError if the queries of the base are scaled, and the adapter may be for the unscaled ones."""
    changes_queries = any("c_attn" in name for name in (*adapter.layers, *adapter.replaced))
    if not changes_queries or adapter.base_sha256 is not None or is_adapter(base) or not has_scaled_queries(base):
        return
    if is_checkpoint(base) and adapter.base is not None and Path(adapter.base).resolve() == base.resolve():
        return  # it was trained on the import
    raise CheckpointError(
        f"{adapter.directory} may be for other weights than those of {base}, whose queries minigpt multiplies by the "
        "scale of the attention; merge it with peft, and import the merged model with `minigpt load-gpt2`"
    )


def has_scaled_queries(path: Path) -> bool:
    """Whether the scale of the attention is multiplied into the query weights of the model at a path.

    Raises: as `open_model`.
    """
    imported = open_model(path, ids_only=True)
    imported.tensors.close()
    return imported.scales_queries


def load_base(directory: Path, base: AdapterBase | None, *, mapped: bool = False) -> GPT:
    """The base model of a run that trains an adapter, to be trained on; for `mapped` see `from_huggingface`.

    Raises: CheckpointError if it is missing, or has changed since the run began.
    """
    name, sha256 = (base.name, base.sha256) if base else (None, None)
    return _load_base(directory, find_base(directory, name), sha256, mapped=mapped).checkpoint.model


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
        adapter = read_adapter(path)
        base = find_base(path, adapter.base, checkpoints)
        _check_whole(path, base)
        return _describe_adapted(adapter, *describe_model(base))
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
        raise CheckpointError(f"{path} does not exist; give {_FORMS}")
    adapter = path.parent if path.name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS, PICKLED_ADAPTER) else path
    if is_adapter(adapter):
        raise CheckpointError(f"{adapter} is a LoRA adapter; make a whole model of it first: minigpt merge {adapter}")
    try:
        if path.is_dir():
            found = _find_in_folder(path)
            return (
                open_tensorflow(path)
                if found.name == HPARAMS or found.suffix == INDEX
                else open_model(found, ids_only=ids_only)
            )
        with open_regular(path) as file:
            start = file.read(8)
    except CheckpointError:  # is an OSError too, and already says what to do
        raise
    except OSError as error:
        raise CheckpointError(f"{read_error(path, error)}; give {_FORMS}") from error
    if start == _HDF5 or path.suffix in _OTHER_FORMS:
        raise _other_form(path, path.suffix if path.suffix in _OTHER_FORMS else ".h5")
    if start.startswith(b"GGUF"):
        from minigpt.importers.gguf import open_gguf

        return open_gguf(path)
    if is_torch_file(path, start):
        content = open_torch(path)
        if is_nanogpt(content):
            return open_nanogpt(path, content)
        return open_huggingface(path, _torch_weights(path, content), ids_only=ids_only)
    if path.name in (HPARAMS, LATEST):
        return open_tensorflow(path.parent)
    if path.suffix == INDEX:
        return open_tensorflow(path)
    if path.name.endswith(_SHARDS):
        return open_huggingface(path, open_sharded(path, _open_weights), ids_only=ids_only)
    if path.suffix != ".safetensors" and (start[:1] in b"{<" or not _could_be_safetensors(path, start)):
        raise CheckpointError(f"{path} has no supported format; give {_FORMS}")
    return open_huggingface(path, TensorFile(path), ids_only=ids_only)


def _open_weights(path: Path) -> TensorSource:
    return TensorFile(path) if path.suffix == ".safetensors" else _torch_weights(path, open_torch(path))


def _find_in_folder(folder: Path) -> Path:
    """The file in a folder that its model is opened by."""
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
    for suffix in _OTHER_FORMS:
        if found := sorted(folder.glob(f"*{suffix}")):
            raise _other_form(found[0], suffix)
    content = ", ".join(sorted(path.name for path in folder.iterdir())[:5]) or "nothing"
    raise CheckpointError(f"{folder} holds no model (it holds {content}); give {_FORMS}")


def _other_form(path: Path, suffix: str) -> CheckpointError:
    """The error for weights in a form that minigpt does not read."""
    form, argument = _OTHER_FORMS[suffix]
    return CheckpointError(
        f"{path} is in {form}, which minigpt does not read; convert it with transformers 4: "
        f"GPT2LMHeadModel.from_pretrained({str(path.parent)!r}, {argument}=True).save_pretrained('NEW_FOLDER')"
    )


def _torch_weights(path: Path, content: object) -> TensorSource:
    """The weights in an object from torch.save: the object itself, or the entry that trainers use for them."""
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a {type(content).__name__}, expected a dictionary of tensors")
    entries = (content.get(key) for key in ("state_dict", "model", "model_state_dict"))
    return torch_tensors(path, next((entry for entry in entries if isinstance(entry, dict)), content))


def _could_be_safetensors(path: Path, start: bytes) -> bool:
    """Whether a file starts like safetensors, with the length of a header that fits into the file."""
    return len(start) == 8 and 2 <= int.from_bytes(start, "little") <= path.stat().st_size - 8


def merge_adapter(
    name: str | Path | None,
    *,
    into: str | None = None,
    base: Path | None = None,
    checkpoints: str | Path = "checkpoints",
) -> LoadedModel:
    """Saves an adapter and its base model as one model in `checkpoints`, by default called NAME-merged.

    `base` is the path of the base model, by default the one that the adapter names. The notes say how it was found.
    Raises: CheckpointError if the model is no adapter, its base is missing or has changed, or the name is taken.
    """
    checkpoints = Path(checkpoints)
    path = find_model(name, checkpoints)
    if not is_adapter(path):
        raise CheckpointError(f"{path} is a whole model, so there is no adapter to merge")
    target = f"{path.resolve().name}-merged" if into is None else into
    if target in ("", ".", "..") or Path(target).name != target:
        raise CheckpointError(f"name ({target!r}) must be the name of a folder in {checkpoints}")
    merged, notes = load_model(path, "cpu", checkpoints=checkpoints, base=base)
    directory = checkpoints / target
    try:
        save_checkpoint(
            directory,
            merged.model,
            merged.tokenizer,
            origin=path.resolve().name,
            notes=["the adapter is merged into the weights of its base model", *notes],
            new=True,
        )
    except FolderTakenError as error:
        raise CheckpointError(
            f"{directory} already exists, so {path} may be merged already; choose another --name"
        ) from error
    return LoadedModel(Checkpoint(directory, merged.model, merged.tokenizer), notes)
