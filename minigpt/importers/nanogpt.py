"""Imports nanoGPT's ckpt.pt, with GPT-2's vocabulary or the characters in meta.pkl.

Source: karpathy/nanoGPT, model.py and train.py; data/shakespeare_char/prepare.py for meta.pkl.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from minigpt.bounded_reading import read_regular
from minigpt.config import GPTConfig
from minigpt.errors import CheckpointError, ConfigError
from minigpt.importers.character_vocabulary import add_byte_tokens
from minigpt.importers.imported_model import ImportedModel, check_vocabulary, may_use_gpt2_vocabulary
from minigpt.importers.plain_pickle import read_plain_pickle
from minigpt.importers.torch_file import torch_tensors
from minigpt.storage.files import read_error
from minigpt.storage.huggingface import HEAD, check_size, plain_name
from minigpt.storage.tensors import LazyTensor, TensorSource
from minigpt.tokenizer.tokenizer import Tokenizer

CHECKPOINT = "ckpt.pt"
_META = "meta.pkl"
_META_SIZE = 1 << 20  # bytes; 30,000 characters take less
_SETTINGS = {
    "vocab_size": "vocab_size",
    "block_size": "n_positions",
    "n_embd": "n_embd",
    "n_layer": "n_layer",
    "n_head": "n_head",
}


def is_nanogpt(content: object) -> bool:
    """Whether an object from torch.save is a checkpoint of nanoGPT."""
    return isinstance(content, dict) and isinstance(content.get("model_args"), dict) and "model" in content


def open_nanogpt(path: Path, content: Mapping[str, Any]) -> ImportedModel:
    """The model in a checkpoint of nanoGPT whose `content` is already open.

    The tokens are the characters of the meta.pkl next to it or in its data folder, else GPT-2's vocabulary.
    Raises: CheckpointError if it is damaged, or its vocabulary is unknown or cannot be converted.
    """
    arguments = content["model_args"]
    config = _read_config(path, arguments)
    if not isinstance(content["model"], dict):
        raise CheckpointError(f"{path} must hold its weights under 'model', a dictionary of tensors")
    tensors = _hugging_face_tensors(torch_tensors(path, content["model"]), biased=_is_biased(arguments))
    try:
        check_size(config, tensors)  # before characters are added, which takes the square of the width
        return _add_tokenizer(path, content, config, tensors)
    except BaseException:
        tensors.close()
        raise


def _read_config(path: Path, arguments: Mapping[str, Any]) -> GPTConfig:
    missing = [name for name in _SETTINGS if name not in arguments]
    if missing:
        raise CheckpointError(f"model_args in {path} have no {missing[0]}, which nanoGPT's always have")
    settings = {ours: arguments[name] for name, ours in _SETTINGS.items()}
    settings["dropout"] = arguments.get("dropout", 0.0)
    for name, value in settings.items():
        if not isinstance(value, int | float | str):  # GPTConfig's message would show all of a nested tuple
            raise CheckpointError(f"model_args in {path}: {name} must be a number, not a {type(value).__name__}")
    try:
        return GPTConfig(**settings, activation_function="gelu")
    except ConfigError as error:
        raise CheckpointError(f"model_args in {path}: {error}") from error


def _is_biased(arguments: Mapping[str, Any]) -> bool:
    return bool(arguments.get("bias", True))


def _hugging_face_tensors(tensors: TensorSource, *, biased: bool) -> TensorSource:
    """The weights with Hugging Face's names, without prefix, and its orientation; zeros for biases that are missing."""
    found = {}
    for name, tensor in tensors.tensors.items():
        plain = plain_name(name)
        is_embedding = plain in ("wte.weight", "wpe.weight", HEAD)
        transposed = len(tensor.shape) == 2 and not is_embedding
        found[plain] = LazyTensor.shaped(tensor.read, tensor.shape, transposed=transposed)
        if not (biased or is_embedding) and plain.endswith(".weight"):
            bias = f"{plain.removesuffix('.weight')}.bias"
            found.setdefault(bias, LazyTensor.of(torch.zeros(tensor.shape[:1])))
    return tensors.replace(found)


def _add_tokenizer(path: Path, content: Mapping[str, Any], config: GPTConfig, tensors: TensorSource) -> ImportedModel:
    notes = ["nanoGPT's exact GELU is kept (activation_function gelu)"]
    if not _is_biased(content["model_args"]):
        notes.append("the model has no biases: they are set to zero, which gives the same outputs")
    settings = content.get("config")
    dataset = settings.get("dataset") if isinstance(settings, dict) else None
    meta = _find_meta(path, dataset)
    if meta is None and not may_use_gpt2_vocabulary(config):
        folder = f", which nanoGPT keeps in data/{dataset}," if isinstance(dataset, str) else ""
        raise CheckpointError(
            f"{path} has a model of {config.vocab_size} tokens but does not say what they are; put the {_META} of its"
            f" data{folder} next to it"
        )
    if meta is None or not (characters := _read_characters(meta)):
        tokenizer = Tokenizer.named("gpt2")
        notes += ["GPT-2's vocabulary is assumed", *check_vocabulary(tokenizer, config, path)]
        return ImportedModel(config, tensors, tokenizer, tuple(notes))
    config, tensors, tokenizer, changes = add_byte_tokens(tensors, config, characters)
    location = f"{_META} next to it" if meta.parent == path.parent else f"data/{dataset}/{_META}"
    notes.append(f"its {len(characters)} characters are those of the {location}")
    notes.append("minigpt adds tokens for the 256 bytes, which the model never predicts and was not trained on")
    return ImportedModel(config, tensors, tokenizer, (*notes, *changes))


def _find_meta(path: Path, dataset: object) -> Path | None:
    """The meta.pkl next to a checkpoint, else in nanoGPT's data folder next to the checkpoint's folder."""
    folders = [path.parent]
    if isinstance(dataset, str) and dataset == Path(dataset).name and dataset not in ("", ".", ".."):
        folders.append(path.absolute().parent.parent / "data" / dataset)
    return next((folder / _META for folder in folders if (folder / _META).is_file()), None)


def _read_characters(meta: Path) -> list[str]:
    """The characters of a meta.pkl in the order of their ids."""
    try:
        data = read_regular(meta, _META_SIZE)
    except OSError as error:
        raise read_error(meta, error) from error
    value = read_plain_pickle(data, meta)
    itos = value.get("itos") if isinstance(value, dict) else None
    if not isinstance(itos, dict) or set(itos) != set(range(len(itos))) or not itos:
        raise CheckpointError(f"{meta} must have 'itos', a dictionary from the ids 0, 1, 2, … to their characters")
    characters = [itos[id] for id in range(len(itos))]
    if any(not isinstance(character, str) or len(character) != 1 for character in characters):
        raise CheckpointError(
            f"{meta} has tokens of several characters but no rule that splits texts into them; they must be single"
            " characters"
        )
    return characters
