"""Opens adapters of minigpt and of peft with their base models, and merges them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minigpt.config import GPTConfig, TrainConfig
from minigpt.errors import CheckpointError, FolderTakenError
from minigpt.lora.adapter import BASE_SHA256, adapter_config, adapter_weights, read_adapter_weights, weights_hash
from minigpt.lora.layers import lora_of
from minigpt.lora.peft import Adapter, check_base, find_base, merged, read_adapter
from minigpt.lora.settings import LoraSettings
from minigpt.model.gpt import GPT
from minigpt.pretrained.gpt2 import hub_name
from minigpt.pretrained.imported_model import check_vocabulary
from minigpt.pretrained.open_model import LoadedModel, describe_model, find_model, is_checkpoint, load_model, open_model
from minigpt.storage.adapters import is_adapter
from minigpt.storage.checkpoint import Checkpoint, save_checkpoint
from minigpt.storage.folder import Content
from minigpt.storage.run_record import AdapterBase
from minigpt.tokenizer.files import has_tokenizer
from minigpt.tokenizer.tokenizer import Tokenizer


class LoraFormat:
    """The files of LoRA adapters, for `minigpt.storage.adapters`."""

    def is_in(self, model: GPT) -> bool:
        """Whether the model has LoRA layers."""
        return lora_of(model) is not None

    def config(self, model: GPT, base: AdapterBase | None) -> dict[str, Any]:
        """The configuration as peft has it."""
        return adapter_config(model, base.name if base else None)

    def weights(self, model: GPT, base: AdapterBase | None, metadata: Mapping[str, str]) -> Content:
        """The tensors, with the hash of the base in their metadata."""
        hashed = {BASE_SHA256: base.sha256} if base else {}
        return adapter_weights(model, {**metadata, **hashed})

    def read_weights(self, directory: Path, model: GPT) -> dict[str, Tensor]:
        """The tensors that `weights` wrote."""
        return read_adapter_weights(directory, model)

    def record_base(self, directory: Path, model: GPT) -> AdapterBase:
        """The base model by its name on the hub, else by its absolute path.

        A model whose queries were scaled when it was imported is not the one on the hub.
        """
        name = None if has_scaled_queries(directory) else hub_name(directory)
        return AdapterBase(name=name or str(directory.resolve()), sha256=weights_hash(model))

    def load_base(self, directory: Path, base: AdapterBase | None, config: TrainConfig) -> GPT:
        """The base model of a run; weights that are to be compressed stay memory-mapped."""
        name, sha256 = (base.name, base.sha256) if base else (None, None)
        mapped = LoraSettings.of(config).base_dtype != "float32"
        return _load_base(directory, find_base(directory, name), sha256, mapped=mapped).checkpoint.model

    def load(
        self, path: Path, device: torch.device, dtype: torch.dtype, checkpoints: Path | None, base: Path | None
    ) -> tuple[GPT, Tokenizer, tuple[str, ...]]:
        """The adapter is added to the weights in float32, before they get the dtype."""
        adapter = read_adapter(path)
        base_path = base or find_base(path, adapter.base, checkpoints)
        _check_queries(adapter, base_path)
        loaded = _load_base(path, base_path, adapter.base_sha256, mapped=True)
        model = merged(loaded.checkpoint.model, adapter).to(device, dtype)
        of_base = (loaded.checkpoint.model.config, loaded.checkpoint.tokenizer, loaded.notes)
        _, tokenizer, notes = _describe_adapted(adapter, *of_base)
        if base is None and adapter.base_sha256 is None and base_path != Path(adapter.base or ""):
            notes += (
                f"the adapter was trained on {adapter.base} and has no hash of it; {base_path} was chosen by its name "
                f"and has a fitting shape; for another base: --model BASE --adapter {path}",
            )
        return model, tokenizer, notes

    def describe(self, path: Path, checkpoints: Path | None) -> tuple[GPTConfig, Tokenizer, tuple[str, ...]]:
        """Reads the weights of the adapter, not those of its base."""
        adapter = read_adapter(path)
        base = find_base(path, adapter.base, checkpoints)
        _check_whole(path, base)
        return _describe_adapted(adapter, *describe_model(base))

    def facts(self, path: Path) -> tuple[dict[str, Any], str]:
        """The adapter's base, shape and size."""
        adapter = read_adapter(path)
        layers = adapter.layers.values()
        entries = {
            "base": adapter.base,
            "rank": max(layer.rank for layer in layers),
            "alpha": max(layer.alpha for layer in layers),
            "layers": len(layers),
            "parameters": sum(layer.a.numel() + layer.b.numel() for layer in layers)
            + sum(tensor.numel() for tensor in adapter.replaced.values()),
            "replaced": sorted(adapter.replaced),
        }
        return entries, f"LoRA of rank {entries['rank']}, alpha {entries['alpha']:g}"


lora_format = LoraFormat()


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
