"""Imports nanoGPT's ckpt.pt, with GPT-2's vocabulary or the characters in meta.pkl.

Source: karpathy/nanoGPT, model.py and train.py; data/shakespeare_char/prepare.py for meta.pkl.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from minigpt.bounded_reading import read_regular
from minigpt.config import GPTConfig
from minigpt.errors import CheckpointError, ConfigError
from minigpt.importers.plain_pickle import read_plain_pickle
from minigpt.importers.torch_file import torch_tensors
from minigpt.pretrained.imported_model import ImportedModel, check_vocabulary, may_use_gpt2_vocabulary
from minigpt.storage.files import read_error
from minigpt.storage.huggingface import HEAD, check_size, check_tied, plain_name
from minigpt.storage.tensors import LazyTensor, TensorSource
from minigpt.tokenizer.tokenizer import Tokenizer

CHECKPOINT = "ckpt.pt"
META = "meta.pkl"
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
    check_size(config, tensors)  # before characters are added, which takes the square of the width
    return _add_tokenizer(path, content, config, tensors)


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
            f"{path} has a model of {config.vocab_size} tokens but does not say what they are; put the {META} of its"
            f" data{folder} next to it"
        )
    if meta is None or not (characters := read_characters(meta)):
        tokenizer = Tokenizer.named("gpt2")
        notes += ["GPT-2's vocabulary is assumed", *check_vocabulary(tokenizer, config, path)]
        return ImportedModel(config, tensors, tokenizer, tuple(notes))
    config, tensors, tokenizer, changes = add_byte_tokens(tensors, config, characters)
    location = f"{META} next to it" if meta.parent == path.parent else f"data/{dataset}/{META}"
    notes.append(f"its {len(characters)} characters are those of the {location}")
    notes.append("minigpt adds tokens for the 256 bytes, which the model never predicts and was not trained on")
    return ImportedModel(config, tensors, tokenizer, (*notes, *changes))


def _find_meta(path: Path, dataset: object) -> Path | None:
    """The meta.pkl next to a checkpoint, else in nanoGPT's data folder next to the checkpoint's folder."""
    folders = [path.parent]
    if isinstance(dataset, str) and dataset == Path(dataset).name and dataset not in ("", ".", ".."):
        folders.append(path.absolute().parent.parent / "data" / dataset)
    return next((folder / META for folder in folders if (folder / META).is_file()), None)


def read_characters(meta: Path) -> list[str]:
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


_LOGIT = -1000.0  # of a token that is never drawn; the others' logits are between -100 and 100
# The features' constant component along a direction, relative to their norm, of which -1000 is made: the larger, the
# less it is rounded. With each, by how much the difference of two characters' logits may change.
_UNCHANGED = 1e-4
_CONSTANTS = ((0.1, _UNCHANGED), (0.02, 0.01), (0.005, 0.01), (0.001, 0.03), (0.0003, 0.03))
_RIDGE = 1e-12  # relative to the largest eigenvalue
_MAX_LENGTH = 20  # of a shift, relative to its component along that direction


def add_byte_tokens(
    source: TensorSource, config: GPTConfig, characters: Sequence[str]
) -> tuple[GPTConfig, TensorSource, Tokenizer, list[str]]:
    """The same model over the vocabulary of a `chars` tokenizer, and a note if a logit changes; `characters` are its
    tokens in the order of its ids.

    `source` has Hugging Face's names without a prefix.
    Raises: CheckpointError if the number of characters differs from the vocabulary size, or the added tokens cannot be
    kept from being predicted.
    """
    if len(characters) != config.vocab_size or len(set(characters)) != len(characters):
        raise CheckpointError(
            f"{source.path} has a model of {config.vocab_size} tokens, but {len(set(characters))} different characters"
            " are listed"
        )
    tokenizer = Tokenizer.train(["".join(characters)], "chars")
    ids = [tokenizer.encode(character) for character in characters]
    if any(len(each) != 1 for each in ids):
        raise CheckpointError(f"{source.path} has a token that is not a valid Unicode character: {characters}")
    width = config.n_embd
    for name, shape in {"wte.weight": (len(characters), width), "ln_f.weight": (width,), "ln_f.bias": (width,)}.items():
        if source.shapes.get(name) != shape:
            raise CheckpointError(f"{source.path} has no tensor {name!r} of shape {shape}")
    if HEAD in source.shapes:
        check_tied(source, HEAD, "wte.weight")
    embedding = source.read("wte.weight").double()  # (V, C)
    weight, bias = source.read("ln_f.weight").double(), source.read("ln_f.bias").double()  # (C,)
    if not all(tensor.isfinite().all() for tensor in (embedding, weight, bias)):
        raise CheckpointError(f"{source.path} has weights that are NaN or infinite, so its training diverged")
    unpredicted = _never_predicted(embedding, weight, bias, str(source.path))
    enlarged = unpredicted.embedding.repeat(tokenizer.vocab_size, 1)
    enlarged[torch.tensor([each[0] for each in ids])] = embedding
    replaced = {"wte.weight": enlarged.float(), "ln_f.bias": (bias + unpredicted.shift).float()}
    tensors = {**source.tensors, **{name: LazyTensor.of(tensor) for name, tensor in replaced.items()}}
    tensors.pop(HEAD, None)
    notes = []
    if unpredicted.change > _UNCHANGED:
        notes.append(
            f"the model has {len(characters)} characters in {width} features, so the added tokens change the"
            f" characters' logits by up to {unpredicted.change:.1g}"
        )
    return config.replace(vocab_size=tokenizer.vocab_size), source.replace(tensors), tokenizer, notes


class _Unpredicted(NamedTuple):
    """An embedding whose logit is -1000 for every input, a shift of the final norm's bias that makes it possible, and
    by how much the shift changes the difference of two characters' logits at most.
    """

    embedding: Tensor
    shift: Tensor
    change: float


def _never_predicted(embedding: Tensor, weight: Tensor, bias: Tensor, path: str) -> _Unpredicted:
    """Finds that embedding.

    The head reads h = w n + b, where n is normalized and sums to 0. So h · (1/w) = sum(n) + b · (1/w) = b · (1/w) for
    every input: along 1/w the features are constant. If that constant is (almost) 0, as in models without biases,
    the shift changes it. Of the shifts that do, this is the one that changes the characters' logits least: not at all
    if there are fewer characters than features, else by about the same number for all, which changes no probability.
    """
    if weight.abs().min() > 1e-4 * weight.abs().max():
        along = 1 / weight
        along /= along.norm()
        constant, size = float(bias @ along), float(weight.norm())
        for relative, most in _CONSTANTS:
            if abs(constant) >= relative * size / 2:
                return _Unpredicted(along * (_LOGIT / constant), torch.zeros_like(bias), 0.0)
            changing = embedding if most == _UNCHANGED else embedding - embedding.mean(dim=0)  # (V, C)
            direction = _least_changing(changing, along)
            shift = direction * (math.copysign(relative * size, constant) - constant)
            changes = changing @ shift
            change = 2 * float(changes.abs().max())
            if change <= most and float(direction.norm()) <= _MAX_LENGTH:
                return _Unpredicted(along * (_LOGIT / float((bias + shift) @ along)), shift, change)
    raise CheckpointError(
        f"{path} has {len(embedding)} tokens in {len(weight)} features, which leaves no direction for tokens that are"
        " never predicted, such as the bytes that it lacks; train it again with `minigpt train --tokenizer chars`"
    )


def _least_changing(embedding: Tensor, along: Tensor) -> Tensor:
    """The direction with component 1 along a unit vector whose products with the rows of the embedding are least."""
    values, vectors = torch.linalg.eigh(embedding.T @ embedding)
    direction = vectors @ ((vectors.T @ along) / (values.clamp(min=0) + _RIDGE * values[-1]))
    return direction / (direction @ along)
