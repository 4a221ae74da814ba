"""Reads LoRA adapters in the format of Hugging Face's peft, and merges them into their base model.

Everything that changes the function of the adapted model is either honored or refused by its name.
"""

import contextlib
import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minigpt.config import GPTConfig
from minigpt.edges import not_installed
from minigpt.errors import CheckpointError, quoted
from minigpt.lora.adapter import BASE_SHA256, weights_hash
from minigpt.model.gpt import GPT
from minigpt.pretrained.hub import is_hub_name
from minigpt.storage.files import exists, read_json
from minigpt.storage.huggingface import (
    EMBEDDING_MODULE,
    HEAD,
    HEAD_MODULE,
    PREFIX,
    linear_layers,
    plain_name,
    stored_tensors,
)
from minigpt.storage.json_record import is_integer, is_number, is_text, mapping
from minigpt.storage.names import ADAPTER_CONFIG, ADAPTER_WEIGHTS, CONFIG, PICKLED_ADAPTER, WEIGHTS, last_part
from minigpt.storage.run import read_record
from minigpt.storage.shipped_models import find_shipped
from minigpt.storage.tensors import TensorFile

_LAYER = r"(?P<layer>h\.\d{1,5}\.(?:attn\.c_attn|attn\.c_proj|mlp\.c_fc|mlp\.c_proj))"
_EMBEDDING = f"{EMBEDDING_MODULE}.weight"
_NAMES = {
    kind: re.compile(pattern)
    for kind, pattern in {
        "a": rf"{_LAYER}\.lora_A\.(?:default\.)?weight",
        "b": rf"{_LAYER}\.lora_B\.(?:default\.)?weight",
        "magnitude": rf"{_LAYER}\.lora_magnitude_vector(?:\.default)?(?:\.weight)?",
    }.items()
}
_WHOLE = re.compile(r"(?P<module>.+?)(?:\.base_layer|\.modules_to_save(?:\.default)?)?\.(?P<kind>weight|bias)")
# The module that one of `modules_to_save` replaces. peft saves it with an embedding of another size, and ignores it.
_UNUSED = ".original_module."


@dataclass(frozen=True)
class AdapterLayer:
    """The adapter of one layer: W becomes W + scale * B A, with DoRA its rows rescaled to the norms in `magnitude`.

    Shapes: a (r, in), b (out, r), magnitude (out,).
    """

    a: Tensor
    b: Tensor
    alpha: float
    scale: float
    magnitude: Tensor | None = None

    @property
    def rank(self) -> int:
        """The rank r of the product."""
        return len(self.a)


@dataclass(frozen=True)
class Adapter:
    """An adapter as it was read: its layers, and the tensors that replace the base's, by Hugging Face's names.

    The names have no prefix. The token embedding may have another number of rows than the base's, as after
    transformers' `resize_token_embeddings`. `base` is the name or path of the base model, `base_sha256` its hash, None
    if it is not recorded.
    """

    directory: Path
    base: str | None
    base_sha256: str | None
    layers: Mapping[str, AdapterLayer]
    replaced: Mapping[str, Tensor]

    def adapted(self, config: GPTConfig) -> GPTConfig:
        """The shape of a base model with the adapter."""
        embedding = self.replaced.get(_EMBEDDING)
        if embedding is None or embedding.dim() != 2 or not len(embedding):
            return config
        return config.replace(vocab_size=len(embedding))


def read_adapter(directory: Path) -> Adapter:
    """The adapter in a folder, of peft or of minigpt.

    Raises: CheckpointError if it is missing or damaged, or does something that is not supported.
    """
    path = directory / ADAPTER_CONFIG
    options = mapping(read_json(path), str(path))
    check_options(options, path)
    tensors, metadata = _read_tensors(directory)
    parts: defaultdict[str, dict[str, Tensor]] = defaultdict(dict)
    replaced: dict[str, Tensor] = {}
    for full, tensor in tensors.items():
        name = plain_name(full.removeprefix("base_model."))
        if _UNUSED in name and full.replace(_UNUSED, ".") in tensors:
            continue
        for kind, pattern in _NAMES.items():
            if match := pattern.fullmatch(name):
                parts[match["layer"]][kind] = tensor.float()
                break
        else:
            whole = _replaced_name(name, options, directory)
            if not torch.equal(replaced.setdefault(whole, tensor.float()), tensor.float()):
                raise CheckpointError(f"{directory} has two different tensors {whole!r}; copy it again")
    _drop_head(replaced, directory)
    layers = {name: _layer(name, given, options, directory) for name, given in parts.items()}
    if not layers:
        raise CheckpointError(f"{directory} has an adapter without tensors; copy it again")
    base = options.get("base_model_name_or_path") or None
    return Adapter(directory, base, metadata.get(BASE_SHA256), layers, replaced)


def _replaced_name(name: str, options: Mapping[str, Any], directory: Path) -> str:
    """The name in the base model of a tensor that was trained whole: a bias, or one of `modules_to_save`."""
    if match := _WHOLE.fullmatch(name):
        module, kind = match["module"], match["kind"]
        saved = options.get("modules_to_save") or ()
        # peft takes the head off this list when it ties it to the embedding, and saves both when they were resized.
        is_saved = module in (HEAD_MODULE, EMBEDDING_MODULE) or any(
            f"{each}." in f"{PREFIX}{module}." for each in saved
        )
        if is_saved or (kind == "bias" and options.get("bias", "none") != "none"):
            return f"{module}.{kind}"
    raise CheckpointError(
        f"{directory} changes {name!r}, which is not supported: an adapter may add to the linear layers of GPT-2's "
        "blocks, and replace the modules that its modules_to_save names; merge it with peft"
    )


def _drop_head(replaced: dict[str, Tensor], directory: Path) -> None:
    """Removes the output head, which in GPT-2 is the token embedding."""
    head, embedding = replaced.pop(HEAD, None), replaced.get(_EMBEDDING)
    if head is None and embedding is None:
        return
    if head is None or embedding is None or not torch.equal(head, embedding):
        raise CheckpointError(
            f"{directory} has a token embedding ({EMBEDDING_MODULE}) that differs from its output head ({HEAD_MODULE})"
            ", and in GPT-2 they are one matrix; train it with modules_to_save "
            f"{[EMBEDDING_MODULE, HEAD_MODULE]} and ensure_weight_tying"
        )


def _layer(name: str, given: Mapping[str, Tensor], options: Mapping[str, Any], directory: Path) -> AdapterLayer:
    """The adapter of one layer, with its scale."""
    rank = int(_value_for(name, options.get("rank_pattern"), options.get("r", 8)))
    alpha = _value_for(name, options.get("alpha_pattern"), options.get("lora_alpha", 8))
    for kind, stored in (("a", "lora_A"), ("b", "lora_B")):
        if kind not in given or given[kind].dim() != 2:
            raise CheckpointError(f"{directory} has no matrix {stored} for {name!r}; copy it again")
    if options.get("use_dora") and "magnitude" not in given:
        raise CheckpointError(f"{directory} has no lora_magnitude_vector for {name!r}; copy it again")
    if not given["a"].shape[0] == given["b"].shape[1] == rank:
        raise CheckpointError(
            f"{directory} has matrices of rank {given['a'].shape[0]} and {given['b'].shape[1]} for {name!r}, but its "
            f"{ADAPTER_CONFIG} says {rank}"
        )
    scale = alpha / (math.sqrt(rank) if options.get("use_rslora") else rank)
    magnitude = given.get("magnitude") if options.get("use_dora") else None
    return AdapterLayer(given["a"], given["b"], alpha, scale, magnitude)


def _read_tensors(directory: Path) -> tuple[dict[str, Tensor], Mapping[str, str]]:
    """The tensors of an adapter, and the metadata next to them."""
    if exists(directory / ADAPTER_WEIGHTS):
        with TensorFile(directory / ADAPTER_WEIGHTS) as file:
            return {name: file.read(name) for name in file.shapes}, file.metadata
    path = directory / PICKLED_ADAPTER
    if not exists(path):
        raise CheckpointError(f"{directory} has an {ADAPTER_CONFIG} but no {ADAPTER_WEIGHTS}; copy it again")
    if absent := not_installed("weight_reader"):
        raise CheckpointError(f"{path} is a file of torch.save, which cannot be read; {absent}")
    from minigpt.importers.torch_file import open_torch, torch_tensors

    content = open_torch(path)
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a {type(content).__name__}, expected a dictionary of tensors")
    with torch_tensors(path, content) as source:
        return {name: source.read(name) for name in source.shapes}, {}


def find_base(directory: Path, name: str | None, checkpoints: Path | None = None) -> Path:
    """The path of the base model that an adapter names: as given, in the folder of the adapter's, or in `checkpoints`.

    It is also looked for by the name or path in the record of the run that trained the adapter: a model that was
    imported from the hub may have another name here. Else it is the shipped model of that name. A name without a folder
    is looked for in the working folder last, as with --model.
    Raises: CheckpointError if it is not here; the message says how to get it.
    """
    if name is None:
        raise CheckpointError(f"{directory} does not name its base model; give it: --model BASE --adapter {directory}")
    folders = [directory.resolve().parent, *([] if checkpoints is None else [checkpoints])]
    is_bare = last_part(name) == name  # such as "gpt2", which in the working folder may be something else
    candidates = [] if is_bare else [Path(name)]
    for each in (_recorded_base(directory), name):
        if each is not None:
            shipped = find_shipped(last_part(each))
            candidates += [*(folder / last_part(each) for folder in folders), Path(each)]
            candidates += [shipped.directory] if shipped else []
    for candidate in candidates:
        if candidate.resolve() != directory.resolve() and _holds_model(candidate):
            return candidate
    if is_hub_name(name) and not Path(name).is_absolute():
        raise CheckpointError(
            f"{directory} is an adapter of {name!r}, which is not here; get it with `minigpt load-gpt2 {name}`"
        )
    raise CheckpointError(
        f"{directory} is an adapter of {name}, which does not exist; put the base model there, or name it: --model "
        f"BASE --adapter {directory}"
    )


def _recorded_base(directory: Path) -> str | None:
    """The model that the run in a folder was fine-tuned from; None if there is no record of it."""
    with contextlib.suppress(CheckpointError):
        return read_record(directory, []).base
    return None


def _holds_model(path: Path) -> bool:
    if not exists(path):
        return False
    return path.is_file() or any(exists(path / name) for name in (CONFIG, WEIGHTS)) or any(path.glob("*.*"))


def check_base(directory: Path, sha256: str | None, base: GPT, path: Path) -> None:
    """Raises CheckpointError if the base is not the model that the adapter in a folder was trained on."""
    if sha256 is not None and sha256 != weights_hash(base):
        raise CheckpointError(
            f"{path} is not the base model that {directory} was trained on, or it has changed since: the hash of its "
            "weights differs; restore it, or train the adapter again"
        )


@torch.no_grad()
def merged(base: GPT, adapter: Adapter) -> GPT:
    """The base model with the adapter added to its weights, in eval mode; the base stays unchanged.

    Raises: CheckpointError for an adapter of another shape.
    """
    names = {stored: name for name, stored in linear_layers(base.config).items()}
    state = dict(base.state_dict())
    for stored, layer in adapter.layers.items():
        weight = state.get(f"{names.get(stored)}.weight")
        shape = None if weight is None else tuple(weight.shape)
        if weight is None or shape != (layer.b.shape[0], layer.a.shape[1]):
            found = "no such layer" if shape is None else f"{shape[1]} inputs and {shape[0]} outputs"
            raise CheckpointError(
                f"{adapter.directory} is not an adapter for this model: its {stored!r} has {layer.a.shape[1]} inputs "
                f"and {layer.b.shape[0]} outputs, and the model has {found}"
            )
        changed = weight.float() + layer.scale * (layer.b @ layer.a)  # (out, in)
        if layer.magnitude is not None:
            if layer.magnitude.shape != changed.shape[:1]:
                raise CheckpointError(f"{adapter.directory}: lora_magnitude_vector of {stored!r} has another shape")
            changed *= (layer.magnitude / changed.norm(dim=1))[:, None]
        state[f"{names[stored]}.weight"] = changed
    config = adapter.adapted(base.config)
    own = {each.stored_name: each for each in stored_tensors(config)}
    for stored, tensor in adapter.replaced.items():
        if stored not in own or own[stored].shape != tuple(tensor.shape):
            raise CheckpointError(f"{adapter.directory} is not an adapter for this model: its {stored!r} does not fit")
        state[own[stored].name] = tensor.t() if own[stored].transposed else tensor
    return GPT.from_tensors(config, state).eval()


# Options of adapter_config.json that are honored, and those that do not change the adapted model's function.
_HONORED = {
    "alpha_pattern", "bias", "lora_alpha", "modules_to_save", "peft_type", "r", "rank_pattern", "use_dora",
    "use_rslora",
}  # fmt: skip
_WITHOUT_EFFECT = {
    "auto_mapping", "base_model_name_or_path", "ensure_weight_tying", "eva_config",
    "exclude_modules", "fan_in_fan_out", "inference_mode", "init_lora_weights", "layers_pattern", "layers_to_transform",
    "lora_dropout", "megatron_core", "peft_version", "qalora_group_size", "revision", "runtime_config",
    "target_modules", "task_type",
}  # fmt: skip
_VALUES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "base_model_name_or_path": (lambda value: value is None or is_text(value), "a name or a path"),
    "r": (lambda value: is_integer(value, 1), "a whole number of at least 1"),
    "lora_alpha": (is_number, "a number"),
    "bias": (lambda value: value in ("none", "all", "lora_only"), "none, all or lora_only"),
    "modules_to_save": (
        lambda value: isinstance(value, list | None) and all(isinstance(each, str) for each in value or ()),
        "a list of names",
    ),
}
_BASE_CHANGING = ("pissa", "olora", "loftq", "corda", "lora_ga")  # initializations that also change the base weights
# The regular expressions of rank_pattern and alpha_pattern that are supported: others may take very long to match.
_CHARACTERS = r"(?:[\w.-]|\\[.dDwW-]|\[\^?[\w.\\-]+\])(?:(?:[*+?]|\{\d{1,2}(?:,\d{0,2})?\})\??)?"
_GROUP = rf"\((?:\?:)?(?:{_CHARACTERS}|\|)*\)"
_PATTERN = re.compile(rf"\^?(?:{_CHARACTERS}|\||{_GROUP})*\$?")
_CHOICES = 12  # bits of choice in a pattern at most: matching may take time that is exponential in them
_ALL_CHOICES = 1 << 13  # of all patterns together: each is matched with each layer
_LONGEST_LIST = 500  # entries; a pattern for each layer of GPT-2 XL would be 192


def check_options(options: Mapping[str, Any], path: Path) -> None:
    """Raises CheckpointError for an adapter of another kind, and for an option that is not supported."""
    kind = options.get("peft_type")
    if kind != "LORA":
        raise CheckpointError(f"peft_type ({quoted(kind)}) in {path} must be 'LORA'; merge the adapter with peft")
    for name, value in options.items():
        if name not in _HONORED | _WITHOUT_EFFECT and value not in (None, False, {}, [], "megatron.core"):
            raise CheckpointError(f"{name} ({quoted(value)}) in {path} is not supported; merge the adapter with peft")
    initial = str(options.get("init_lora_weights", True)).lower()
    if initial.startswith(_BASE_CHANGING):
        raise CheckpointError(
            f"init_lora_weights ({initial!r}) in {path} changes the base model, so that the adapter does not belong to "
            "the base that it names; convert it with peft's path_initial_model_for_weight_conversion"
        )
    for name, (is_valid, expected) in _VALUES.items():
        if name in options and not is_valid(options[name]):
            raise CheckpointError(f"{name} ({quoted(options[name])}) in {path} must be {expected}")
    _check_length("modules_to_save", options.get("modules_to_save") or (), path)
    for name in ("rank_pattern", "alpha_pattern"):
        patterns = mapping(options.get(name) or {}, f"{name} in {path}")
        _check_length(name, patterns, path)
        choices = 0.0
        for pattern, value in patterns.items():
            if not is_number(value):
                raise CheckpointError(f"{name} of {quoted(pattern)} in {path} is {quoted(value)}, not a number")
            if name == "rank_pattern" and not is_integer(value, 1):
                raise CheckpointError(
                    f"{name} of {quoted(pattern)} in {path} is {quoted(value)}, not a whole number of at least 1"
                )
            choices += 2 ** _check_pattern(pattern, name, path)
        if choices > _ALL_CHOICES:
            raise CheckpointError(f"{name} in {path}: its regular expressions together are not supported")


def _check_length(name: str, entries: Sized, path: Path) -> None:
    if len(entries) > _LONGEST_LIST:
        raise CheckpointError(f"{name} in {path} has {len(entries):,} entries; the maximum is {_LONGEST_LIST}")


def _check_pattern(pattern: str, name: str, path: Path) -> float:
    """The bits of choice in a regular expression, on which depends how long its matching can take."""
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise CheckpointError(f"{name} in {path}: {quoted(pattern)} is not a regular expression ({error})") from error
    alternatives = [each.count("|") + 1 for each in (re.sub(_GROUP, "", pattern), *re.findall(_GROUP, pattern))]
    choices = 3 * len(re.findall(r"(?<!\()[*+?{]", pattern)) + sum(map(math.log2, alternatives))
    if not _PATTERN.fullmatch(pattern) or choices > _CHOICES:
        raise CheckpointError(f"{name} in {path}: the regular expression {quoted(pattern)} is not supported")
    return choices


def _value_for(layer: str, patterns: Mapping[str, float] | None, default: float) -> float:
    """The value of the first pattern that matches the end of a layer's name, as peft chooses it."""
    for pattern, value in (patterns or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", f"transformer.{layer}"):
            return value
    return default
