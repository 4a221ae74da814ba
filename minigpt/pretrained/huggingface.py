"""Imports GPT-2 models of transformers, of any version: config.json, a tokenizer and weights in one file or several.

Options in config.json that only scale the attention are multiplied into the weights.
"""

import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from minigpt.config import GPTConfig
from minigpt.edges import provided
from minigpt.errors import CheckpointError, TokenizerError
from minigpt.pretrained.imported_model import (
    ImportedModel,
    WeightReader,
    check_vocabulary,
    may_use_gpt2_vocabulary,
    tokenizer_notes,
)
from minigpt.storage.checkpoint import CONFIG, WEIGHTS
from minigpt.storage.files import read_json
from minigpt.storage.huggingface import (
    check_size,
    config_from_huggingface,
    infer_config,
    plain_name,
    unused_heads,
)
from minigpt.storage.tensors import LazyTensor, TensorFile, TensorSource
from minigpt.tokenizer.config_files import read_config
from minigpt.tokenizer.files import IDS_ONLY, has_tokenizer
from minigpt.tokenizer.other_vocabulary import read_other
from minigpt.tokenizer.tokenizer import Tokenizer

SHARDS = ".index.json"  # ends the name of an index of files
# The options that scale the attention, with GPT-2's values. Other values are equal to a factor on the queries.
_SCALES = {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False}
_QUERIES = re.compile(r"h\.(\d{1,5})\.attn\.c_attn\.(weight|bias)")
SCALED_QUERIES = "scaled_queries"  # key in the metadata of an import's weights if these options were multiplied in
GPT2_VOCABULARY_ASSUMED = "no tokenizer next to the weights: GPT-2's vocabulary is assumed"  # a note


def open_huggingface(weights: Path, tensors: TensorSource, *, ids_only: bool = False) -> ImportedModel:
    """The model with these open weights, and the config.json and tokenizer next to them; with `ids_only` without one.

    Raises: CheckpointError if it is not a GPT-2 or its tokenizer does not belong to it; TokenizerError.
    """
    path = weights.parent / CONFIG
    notes: list[str] = []
    scaled: Mapping[str, bool] = {}
    if path.exists():
        values = read_json(path)
        scaled = scales_attention(values)
        config = config_from_huggingface({**values, **{name: _SCALES[name] for name in scaled}}, path)
        if scaled:
            check_size(config, tensors)
            tensors = _with_scaled_queries(tensors, scaled, config)
            options = " and ".join(f"{name} ({value})" for name, value in scaled.items())
            notes.append(f"{options} is multiplied into the weights of the queries, which gives the same outputs")
    else:
        config = infer_config(tensors.path, tensors.shapes)
        notes.append(f"no {CONFIG} next to {weights.name}: {config.n_head} heads of 64 are assumed, as in every GPT-2")
    tokenizer, assumed = _ids_only(weights.parent, config) if ids_only else _read_tokenizer(weights.parent, config)
    notes += assumed
    notes += check_vocabulary(tokenizer, config, weights.parent)
    scales_queries = bool(scaled) or SCALED_QUERIES in tensors.metadata
    return ImportedModel(config, tensors, tokenizer, (*notes, *unused_heads(tensors)), scales_queries)


def scales_attention(values: Mapping[str, Any]) -> dict[str, bool]:
    """The options of a config.json that scale the attention differently from GPT-2, with their values."""
    return {name: values[name] for name, usual in _SCALES.items() if values.get(name) is (not usual)}


def _ids_only(folder: Path, config: GPTConfig) -> tuple[Tokenizer, list[str]]:
    """What stands for the tokenizer of a model that has none, and a note."""
    files = read_config(folder)
    known = [id for id in files.stop_ids if 0 <= id < config.vocab_size]
    end, *others = known or [config.vocab_size - 1]
    ends = f"each of the ids {', '.join(map(str, known))} ends" if others else f"the id {end} ends"
    note = f"no tokenizer: texts are token ids with spaces between them, and {ends} a text"
    vocabulary = read_other(folder, files._replace(options={IDS_ONLY: [config.vocab_size, end]}))
    if vocabulary is None:
        raise TokenizerError("a model without a tokenizer cannot be imported: what reads its ids is not installed")
    return Tokenizer(vocabulary).with_end_ids(others), [
        note if known else f"{note}, because config.json names no other"
    ]


def _read_tokenizer(folder: Path, config: GPTConfig) -> tuple[Tokenizer, list[str]]:
    """The tokenizer next to the weights, or GPT-2's for a model of its vocabulary size, and notes."""
    if has_tokenizer(folder):
        tokenizer = Tokenizer.load(folder)
        return tokenizer, tokenizer_notes(tokenizer)
    if may_use_gpt2_vocabulary(config):
        return Tokenizer.named("gpt2").with_end_ids(read_config(folder).stop_ids), [GPT2_VOCABULARY_ASSUMED]
    raise CheckpointError(
        f"{folder} has no tokenizer, and its model has {config.vocab_size} tokens, not GPT-2's 50257; put the"
        " tokenizer.json that belongs to the model next to it, or import it for token ids only with --tokenizer none"
    )


def _with_scaled_queries(source: TensorSource, scaled: Mapping[str, Any], config: GPTConfig) -> TensorSource:
    """The tensors with the factor in each layer's queries that makes GPT-2's scale give what the options ask for."""
    common = math.sqrt(config.head_width) if "scale_attn_weights" in scaled else 1.0
    tensors = dict(source.tensors)
    for name, tensor in source.tensors.items():
        if (match := _QUERIES.fullmatch(plain_name(name))) and int(match[1]) < config.n_layer:
            factor = common / (int(match[1]) + 1) if "scale_attn_by_inverse_layer_idx" in scaled else common
            tensors[name] = tensor.changed(partial(_scale_queries, factor=factor))
    return source.replace(tensors)


def _scale_queries(tensor: Tensor, factor: float) -> Tensor:
    tensor = tensor.float()  # first, because half precision would round the product again
    tensor[..., : tensor.shape[-1] // 3] *= factor
    return tensor


def open_sharded(index: Path, open_shard: Callable[[Path], TensorSource]) -> TensorSource:
    """The tensors of all files that an index names; these are in its folder, where links may lead elsewhere.

    Raises: CheckpointError if the index is damaged or names files elsewhere, or a file's tensors differ from the index.
    """
    file_of = read_json(index).get("weight_map")
    if not isinstance(file_of, dict) or not all(isinstance(name, str) for name in file_of.values()):
        raise CheckpointError(f"{index} must have a weight_map of tensor names to files; copy or download it again")
    tensors: dict[str, LazyTensor] = {}
    opened = []
    for shard in sorted(set(file_of.values())):
        if shard in ("", ".", "..") or "\\" in shard or not shard.isprintable() or Path(shard).name != shard:
            raise CheckpointError(f"{index} names {shard!r}, which must be a file in the same folder")
        opened.append(open_shard(index.parent / shard))
        for name, tensor in opened[-1].tensors.items():
            if file_of.get(name) != shard:
                raise CheckpointError(f"{opened[-1].path} has a tensor {name!r} that {index} does not list")
            tensors[name] = tensor
    for name in file_of.keys() - tensors.keys():
        raise CheckpointError(f"{index.parent / file_of[name]} has no tensor {name!r}, which {index} lists")

    def close() -> None:
        for source in opened:
            source.close()

    return TensorSource(index, tensors, close)


def _matches(path: Path, start: bytes) -> bool:
    return (
        path.suffix == ".safetensors"
        or path.name.endswith(SHARDS)
        or (start[:1] not in b"{<" and _could_be_safetensors(path, start))
    )


def _could_be_safetensors(path: Path, start: bytes) -> bool:
    """Whether a file starts like safetensors, with the length of a header that fits into the file."""
    return len(start) == 8 and 2 <= int.from_bytes(start, "little") <= path.stat().st_size - 8


def _read(path: Path, ids_only: bool) -> ImportedModel:
    tensors = open_sharded(path, TensorFile) if path.name.endswith(SHARDS) else TensorFile(path)
    return open_huggingface(path, tensors, ids_only=ids_only)


HUGGING_FACE = WeightReader(
    matches=_matches,
    read=_read,
    hub_files=(WEIGHTS, WEIGHTS + SHARDS),
    single_files=("*.safetensors",),
    folders=("Hugging Face's",),
    files=(".safetensors", SHARDS),
)


def weight_readers() -> tuple[WeightReader, ...]:
    """The readers of weights: Hugging Face's, then those of the installed edges."""
    return (HUGGING_FACE, *(reader for readers in provided("weight_reader") for reader in readers))


def find_reader(path: Path, start: bytes) -> WeightReader | None:
    """The reader that matches a path.

    Other packages are asked first, because theirs are the rarest formats, and Hugging Face's last, because a file that
    begins with any small number could be safetensors.
    """
    groups = ((HUGGING_FACE,), *provided("weight_reader"))
    return next((reader for group in reversed(groups) for reader in group if reader.matches(path, start)), None)
