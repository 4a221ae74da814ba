"""Imports GPT-2 from GGUF files, as llama.cpp's converter and minigpt's exporter write them.

Source: llama.cpp, conversion/gpt2.py, src/llama-arch.cpp, src/models/gpt2.cpp and src/llama-vocab.cpp.
"""

import re
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from minigpt.config import GPTConfig
from minigpt.errors import CheckpointError, TokenizerError
from minigpt.importers.gguf_file import GgufFile
from minigpt.importers.tensor_names import check_shape, find_tensors
from minigpt.pretrained.imported_model import ImportedModel, check_vocabulary, lazy_tensors
from minigpt.storage.huggingface import config_from_huggingface
from minigpt.storage.tensors import TensorSource
from minigpt.tokenizer.tokenizer import Tokenizer
from minigpt.tokenizer.vocabulary import END_OF_TEXT, Vocabulary

_HEAD = "output.weight"
_LOSSLESS = ("F64", "F32", "F16", "BF16")
_BFLOAT16_STEP = 2**-8
# llama.cpp's names for pre-tokenizers that split texts with GPT-2's pattern.
_PRE_TOKENIZERS = ("gpt-2", "mpt", "olmo", "jais", "phi-2")
_UNKNOWN_PRE_TOKENIZERS = (None, "default")
_ROLES = {"bos_token": "bos", "unk_token": "unknown", "pad_token": "padding"}  # as tokenizer.ggml.bos_token_id
_NORMAL, _USER_DEFINED, _UNUSED = 1, 4, 5  # token types; all others are special
_MODULES = {
    "token_embedding": "token_embd",
    "position_embedding": "position_embd",
    "attention_norm": "attn_norm",
    "attention.qkv_proj": "attn_qkv",
    "attention.out_proj": "attn_output",
    "mlp_norm": "ffn_norm",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "final_norm": "output_norm",
}


def gguf_name(name: str) -> str:
    """A tensor's name in GGUF: `blk.0.ffn_up.weight` for `blocks.0.mlp.up_proj.weight`."""
    module, _, kind = name.rpartition(".")
    if not module.startswith("blocks."):
        return f"{_MODULES[module]}.{kind}"
    _, block, module = module.split(".", 2)
    return f"blk.{block}.{_MODULES[module]}.{kind}"


def open_gguf(path: Path) -> ImportedModel:
    """Opens the GPT-2 in a GGUF file; its tensors are not read yet.

    Raises: CheckpointError if the file is damaged or not a GPT-2; TokenizerError.
    """
    file = GgufFile(path)
    _check_architecture(file)
    config = _read_config(file)
    names = _find_tensors(file, config)
    notes = [*_resolve_head(file, names), *_quantization_notes(file, names.values())]
    try:
        tokenizer = _read_tokenizer(file, notes)
    except TokenizerError as error:
        raise TokenizerError(f"the tokenizer in {path} cannot be used: {error}") from error
    if isinstance(template := file.metadata.get("tokenizer.chat_template"), str):
        tokenizer = tokenizer.with_chat_template(template)
    ends = [file.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    tokenizer = tokenizer.with_end_ids(id for id in ends if type(id) is int)
    notes += check_vocabulary(tokenizer, config, path)
    tensors = lazy_tensors(config, names, file.read, transposes=True)
    return ImportedModel(config, TensorSource(path, tensors, file.close), tokenizer, tuple(notes))


def _check_architecture(file: GgufFile) -> None:
    """Checks that the file is a complete GPT-2."""
    architecture = file.metadata.get("general.architecture")
    if architecture != "gpt2":
        raise CheckpointError(f"general.architecture ({architecture!r}) in {file.path} must be 'gpt2'")
    kind = file.metadata.get("general.type", "model")
    if kind != "model":
        raise CheckpointError(f"general.type ({kind!r}) in {file.path} must be 'model'")
    parts = file.metadata.get("split.count", 0)
    if parts not in (0, 1):
        raise CheckpointError(
            f"{file.path} is one of {parts!r} parts of a model; join them with llama-gguf-split --merge"
        )


def _read_config(file: GgufFile) -> GPTConfig:
    """The config, from the metadata and the shape of the token embedding."""
    values = file.metadata

    def require(key: str) -> Any:
        if key not in values:
            raise CheckpointError(f"{file.path} has no {key}, which llama.cpp's converter writes for every GPT-2")
        return values[key]

    if "token_embd.weight" not in file.tensors:
        raise CheckpointError(f"{file.path} has no tensor 'token_embd.weight'")
    config = config_from_huggingface(
        {
            "model_type": "gpt2",
            "vocab_size": next(iter(file.tensors["token_embd.weight"].shape), 0),
            "n_positions": require("gpt2.context_length"),
            "n_embd": require("gpt2.embedding_length"),
            "n_layer": require("gpt2.block_count"),
            "n_head": require("gpt2.attention.head_count"),
            "layer_norm_epsilon": require("gpt2.attention.layer_norm_epsilon"),
        },
        file.path,
    )
    expected = {"gpt2.feed_forward_length": 4 * config.n_embd, "gpt2.attention.head_count_kv": config.n_head}
    for key, value in expected.items():
        found = values.get(key, value)
        if not isinstance(found, int) or found != value:
            raise CheckpointError(f"{key} ({found!r}) in {file.path} must be {value}, as in GPT-2")
    return config


def _find_tensors(file: GgufFile, config: GPTConfig) -> dict[str, str]:
    """The names of the model's tensors in the file, by Hugging Face's, whose matrices are the transposes of GGUF's."""
    shapes = {name: tensor.shape for name, tensor in file.tensors.items()}
    names = find_tensors(file.path, config, shapes, lambda stored: gguf_name(stored.name), transposes=True)
    if _HEAD in shapes:
        check_shape(file.path, _HEAD, shapes[_HEAD], (config.vocab_size, config.n_embd))
    for name in sorted(shapes.keys() - {_HEAD} - set(names.values())):
        raise CheckpointError(f"{file.path} has an unexpected tensor {name!r} for a GPT-2 of {config.n_layer} blocks")
    return names


def _resolve_head(file: GgufFile, names: dict[str, str]) -> list[str]:
    """Decides whether a stored output matrix is the token embedding in another precision; returns notes on it.

    llama-quantize stores both, the output matrix with more bits. The one with more bits becomes the embedding.
    """
    if _HEAD not in file.tensors:
        return []
    both = [names["wte.weight"], _HEAD]
    types = [file.type_name(name) for name in both]
    coarse, fine = sorted(both, key=lambda name: file.tensors[name].size)
    values, rounded = file.read(fine).float(), file.read(coarse).float()
    bits = 8 * file.tensors[coarse].size / values.numel()
    distance = float((rounded - values).norm() / values.norm()) if not torch.equal(rounded, values) else 0.0
    # Rounding to that many bits changes the norm by less than this. NaN fails the comparison, too.
    most = 0 if types[0] == types[1] and types[0] in _LOSSLESS else max(2 ** (1.5 - bits), _BFLOAT16_STEP)
    if not distance <= most:
        raise CheckpointError(
            f"{_HEAD!r} in {file.path} differs from {both[0]!r} by {distance:.0%}: the output head must be tied"
            " to the token embedding"
        )
    names["wte.weight"] = fine
    if not distance:
        return []
    return [
        f"{both[0]} ({types[0]}) and {both[1]} ({types[1]}) differ by {distance:.1%}, so they are one matrix in two"
        f" precisions: {fine} is used for both"
    ]


def _quantization_notes(file: GgufFile, names: Iterable[str]) -> list[str]:
    """A note on the quantized tensors, if there are any."""
    types = Counter(map(file.type_name, names))
    quantized = [f"{count} {name}" for name, count in types.items() if name not in _LOSSLESS]
    if not quantized:
        return []
    return [f"quantized tensors ({', '.join(quantized)}) are converted to float32; their rounding stays"]


class _Tokens(NamedTuple):
    """The tokens of a vocabulary with their ids, by token type; the token that ends a text, those of other roles."""

    normal: dict[str, int]
    special: dict[str, int]
    added: dict[str, int]
    end_of_text: str
    roles: dict[str, str]


def _read_tokenizer(file: GgufFile, notes: list[str]) -> Tokenizer:
    """The tokenizer in the metadata; adds to `notes` what was assumed."""
    values = file.metadata
    family = values.get("tokenizer.ggml.model")
    if family not in ("gpt2", "rwkv"):
        raise CheckpointError(
            f"tokenizer.ggml.model ({family!r}) in {file.path} must be 'gpt2', or 'rwkv' as minigpt writes it"
        )
    tokens = _read_tokens(file)
    prefix = []
    if values.get("tokenizer.ggml.add_bos_token") is True:
        start = tokens.roles.get("bos_token", tokens.end_of_text)
        prefix = [tokens.special[start]]
        notes.append(f"the tokenizer puts {start} before every prompt, as in llama.cpp")
    if family == "rwkv":
        return _character_tokenizer(file, tokens, prefix)
    pre_tokenizer = values.get("tokenizer.ggml.pre")
    if pre_tokenizer in _UNKNOWN_PRE_TOKENIZERS:
        notes.append("the file does not name its pre-tokenizer (tokenizer.ggml.pre): GPT-2's is assumed")
    elif pre_tokenizer not in _PRE_TOKENIZERS:
        raise CheckpointError(
            f"tokenizer.ggml.pre ({pre_tokenizer!r}) in {file.path} must be 'gpt-2': others split texts differently"
        )
    merges = values.get("tokenizer.ggml.merges")
    if not isinstance(merges, list):
        raise CheckpointError(f"{file.path} has no tokenizer.ggml.merges")
    # llama.cpp requires merges, so a tokenizer of bytes has one merge of special tokens, which never applies.
    merges = [merge for merge in merges if not all(part in tokens.special for part in merge.split(" "))]
    return Tokenizer.from_vocabulary(
        tokens.normal, merges, special=tokens.special, end_of_text=tokens.end_of_text, added=tokens.added,
        roles=tokens.roles, prefix=prefix,
    )  # fmt: skip


def _read_tokens(file: GgufFile) -> _Tokens:
    """The tokens in the metadata, without those that only pad the embedding."""
    values = file.metadata
    tokens, types = values.get("tokenizer.ggml.tokens"), values.get("tokenizer.ggml.token_type")
    if not isinstance(tokens, list) or not (
        types is None or (isinstance(types, array) and types.typecode in "iI" and len(types) == len(tokens))
    ):
        raise CheckpointError(
            f"{file.path} must have tokenizer.ggml.tokens, and one tokenizer.ggml.token_type for each"
        )
    end = values.get("tokenizer.ggml.eos_token_id", values.get("tokenizer.ggml.bos_token_id"))
    if end is None and END_OF_TEXT in tokens:
        end = tokens.index(END_OF_TEXT)
    if type(end) is not int or not 0 <= end < len(tokens):
        raise CheckpointError(
            f"tokenizer.ggml.eos_token_id ({end!r}) in {file.path} must be the id of one of its {len(tokens)} tokens"
        )
    found = _Tokens({}, {tokens[end]: end}, {}, tokens[end], {})
    for id, token in enumerate(tokens):
        kind = _NORMAL if types is None else types[id]
        if kind == _UNUSED:
            continue
        group = found.normal if kind == _NORMAL else found.added if kind == _USER_DEFINED else found.special
        if group.setdefault(token, id) != id:
            raise CheckpointError(f"{file.path} has the token {token!r} twice, as {group[token]} and {id}")
    names = {id: name for name, id in found.special.items()}
    for role, key in _ROLES.items():
        named = values.get(f"tokenizer.ggml.{key}_token_id")
        if type(named) is int and named in names and named != end:
            found.roles[role] = names[named]
    return found


def _character_tokenizer(file: GgufFile, tokens: _Tokens, prefix: Sequence[int]) -> Tokenizer:
    r"""A character tokenizer as minigpt's exporter writes it, each token as `\xe2\x82\xac`."""
    if not all(re.fullmatch(r"(\\x[0-9a-f]{2})+", token) for token in tokens.normal):
        raise CheckpointError(f"tokenizer.ggml.model ('rwkv') in {file.path} must be one that minigpt wrote")
    ids = {bytes.fromhex(token.replace(r"\x", "")): id for token, id in tokens.normal.items()}
    vocabulary = Vocabulary(ids, (), tokens.special, tokens.end_of_text, tokens.added, by_character=True)
    return Tokenizer(replace(vocabulary, roles=tokens.roles, prefix=tuple(prefix)))
