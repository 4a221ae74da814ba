"""GPT-2 from a GGUF file, as llama.cpp's converter and our own exporter write it; `gguf_file` knows the format.

Source: llama.cpp, conversion/gpt2.py, src/models/gpt2.cpp and src/llama-vocab.cpp.
"""

import re
from array import array
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from minigpt.config import GPTConfig
from minigpt.errors import CheckpointError, TokenizerError
from minigpt.importers.gguf_file import GgufFile
from minigpt.importers.gguf_names import name_in_gguf
from minigpt.importers.imported_model import ImportedModel
from minigpt.importers.renamed_tensors import Place, RenamedTensors, expect_shape
from minigpt.importers.vocabulary_check import fit
from minigpt.storage.huggingface import config_from_huggingface, stored_tensors
from minigpt.tokenizer.tokenizer import Tokenizer
from minigpt.tokenizer.vocabulary import END_OF_TEXT, Vocabulary

_HEAD = "output.weight"
_LOSSLESS = ("F64", "F32", "F16", "BF16")
_BFLOAT16_STEP = 2**-8
# How llama.cpp splits a text before merging: its names of GPT-2's pattern.
_SPLITS = ("gpt-2", "mpt", "olmo", "jais", "phi-2")
_UNKNOWN_SPLITS = (None, "default")
_NORMAL, _USER_DEFINED, _UNUSED = 1, 4, 5  # kinds of tokens; all others are special


def open_gguf(path: Path) -> ImportedModel:
    """The GPT-2 in a GGUF file, opened and not yet read.

    Raises: CheckpointError where the file is damaged or the model is no GPT-2; TokenizerError.
    """
    file = GgufFile(path)
    try:
        _check_kind(file)
        config = _config_of(file)
        places = _places_of(file, config)
        notes = [*_tie_head(file, places), *_quantized(file, places)]
        tokenizer = _tokenizer_of(file, notes)
        notes += fit(tokenizer, config, path)
    except TokenizerError as error:
        file.close()
        raise TokenizerError(f"the tokenizer in {path} cannot be used: {error}") from error
    except BaseException:
        file.close()
        raise
    return ImportedModel(config, RenamedTensors(file, places), tokenizer, tuple(notes))


def _check_kind(file: GgufFile) -> None:
    """Makes sure that the file is a whole GPT-2.

    Raises: CheckpointError where it is another model, a part of one, or an adapter to one.
    """
    architecture = file.metadata.get("general.architecture")
    if architecture != "gpt2":
        raise CheckpointError(f"general.architecture ({architecture!r}) in {file.path} must be 'gpt2'")
    kind = file.metadata.get("general.type", "model")
    if kind != "model":
        raise CheckpointError(f"general.type ({kind!r}) in {file.path} must be 'model'")
    parts = file.metadata.get("split.count", 0)
    if parts not in (0, 1):
        raise CheckpointError(
            f"{file.path} is one of {parts!r} parts of a model, which must be whole;"
            " join them with llama-gguf-split --merge"
        )


def _config_of(file: GgufFile) -> GPTConfig:
    """The shape, from the metadata and the token embedding."""
    values = file.metadata

    def need(key: str) -> Any:
        if key not in values:
            raise CheckpointError(f"{file.path} has no {key}, which llama.cpp's converter writes for every GPT-2")
        return values[key]

    if "token_embd.weight" not in file.tensors:
        raise CheckpointError(f"{file.path} has no tensor 'token_embd.weight'")
    config = config_from_huggingface(
        {
            "model_type": "gpt2",
            "vocab_size": next(iter(file.tensors["token_embd.weight"].shape), 0),
            "n_positions": need("gpt2.context_length"),
            "n_embd": need("gpt2.embedding_length"),
            "n_layer": need("gpt2.block_count"),
            "n_head": need("gpt2.attention.head_count"),
            "layer_norm_epsilon": need("gpt2.attention.layer_norm_epsilon"),
        },
        file.path,
    )
    expected = {"gpt2.feed_forward_length": 4 * config.n_embd, "gpt2.attention.head_count_kv": config.n_head}
    for key, value in expected.items():
        found = values.get(key, value)
        if not isinstance(found, int) or found != value:
            raise CheckpointError(f"{key} ({found!r}) in {file.path} makes another model than GPT-2's: {value}")
    return config


def _places_of(file: GgufFile, config: GPTConfig) -> dict[str, Place]:
    """Where each tensor of the model is, by Hugging Face's names: matrices lie turned.

    Raises: CheckpointError for a tensor that is missing, misshapen or too many.
    """
    places = {}
    for stored in stored_tensors(config):
        shape = stored.shape[::-1] if stored.transposed else stored.shape
        place = Place(name_in_gguf(stored.ours), shape, stored.transposed)
        if place.theirs not in file.tensors:  # at once: a file may claim a million blocks
            raise CheckpointError(f"{file.path} has no tensor {place.theirs!r}, expected of shape {shape}")
        places[stored.theirs] = place
    for place in places.values():
        expect_shape(file.path, place, file.tensors[place.theirs].shape)
    if _HEAD in file.tensors:
        expect_shape(file.path, places["wte.weight"]._replace(theirs=_HEAD), file.tensors[_HEAD].shape)
    for name in sorted(file.tensors.keys() - {_HEAD} - {place.theirs for place in places.values()}):
        raise CheckpointError(
            f"{file.path} has a tensor {name!r} that a GPT-2 of {config.n_layer} blocks does not have"
        )
    return places


def _tie_head(file: GgufFile, places: dict[str, Place]) -> list[str]:
    """Finds out whether an output matrix is the token embedding, rounded otherwise: llama-quantize keeps it finer.

    If so, `places` hold the finer of the two, for both uses. Whether equal types are equal is the model's to compare.
    Raises: CheckpointError where it is a matrix of its own.
    """
    embedding = places["wte.weight"]
    if _HEAD not in file.tensors:
        return []
    both = [embedding.theirs, _HEAD]
    kinds = [file.kind(name) for name in both]
    places["lm_head.weight"] = embedding._replace(theirs=_HEAD)
    if kinds[0] == kinds[1] and kinds[0] in _LOSSLESS:
        return []
    coarse, fine = sorted(both, key=lambda name: file.tensors[name].size)
    numbers, other = file.read(fine).float(), file.read(coarse).float()
    bits = 8 * file.tensors[coarse].size / numbers.numel()
    distance = float((other - numbers).norm() / numbers.norm())
    # Roundings are off by less than this in norm, and a distance that is no number is none of a rounding.
    if not distance <= max(2 ** (1.5 - bits), _BFLOAT16_STEP):
        raise CheckpointError(
            f"{_HEAD!r} in {file.path} differs from {embedding.theirs!r} by {distance:.0%}: an output head of its own"
            " is not supported, it must be tied to the token embedding"
        )
    del places["lm_head.weight"]
    places["wte.weight"] = embedding._replace(theirs=fine)
    if not distance:
        return []
    return [
        f"{both[0]} ({kinds[0]}) and {both[1]} ({kinds[1]}), which differ by {distance:.1%}, are taken for one matrix,"
        f" rounded twice: {fine} serves for both"
    ]


def _quantized(file: GgufFile, places: dict[str, Place]) -> list[str]:
    """A sentence on what is quantized, where anything is."""
    kinds = Counter(file.kind(place.theirs) for place in places.values())
    found = [f"{count} {kind}" for kind, count in kinds.items() if kind not in _LOSSLESS]
    if not found:
        return []
    return [f"quantized tensors ({', '.join(found)}) are taken as they were rounded, in float32"]


class _Tokens(NamedTuple):
    """The tokens of a vocabulary with their ids, by how a text comes to have them, and the name of the end of text."""

    words: dict[str, int]
    special: dict[str, int]
    added: dict[str, int]
    end_of_text: str


def _tokenizer_of(file: GgufFile, notes: list[str]) -> Tokenizer:
    """The tokenizer in the metadata; `notes` gains what was assumed of it.

    Raises: CheckpointError where it is of another family, or splits texts otherwise; TokenizerError.
    """
    values = file.metadata
    family = values.get("tokenizer.ggml.model")
    if family not in ("gpt2", "rwkv"):
        raise CheckpointError(f"tokenizer.ggml.model ({family!r}) in {file.path} must be 'gpt2', or the 'rwkv' of ours")
    tokens = _tokens_of(file)
    if values.get("tokenizer.ggml.add_bos_token") is True:
        notes.append("llama.cpp puts a start token before every prompt to this model, minigpt does not")
    if family == "rwkv":
        return _of_characters(file, tokens)
    split = values.get("tokenizer.ggml.pre")
    if split in _UNKNOWN_SPLITS:
        notes.append("it does not say how its texts are split (tokenizer.ggml.pre): as GPT-2's, presumably")
    elif split not in _SPLITS:
        raise CheckpointError(
            f"tokenizer.ggml.pre ({split!r}) in {file.path} splits texts in another way than GPT-2's: 'gpt-2'"
        )
    merges = values.get("tokenizer.ggml.merges")
    if not isinstance(merges, list):
        raise CheckpointError(f"{file.path} has no tokenizer.ggml.merges")
    # llama.cpp wants some: a tokenizer of bytes has one of special tokens, which never applies.
    merges = [merge for merge in merges if not all(part in tokens.special for part in merge.split(" "))]
    return Tokenizer.from_vocabulary(
        tokens.words, merges, special=tokens.special, end_of_text=tokens.end_of_text, added=tokens.added
    )


def _tokens_of(file: GgufFile) -> _Tokens:
    """The tokens in the metadata; those that only make the matrix larger are left out.

    Raises: CheckpointError where they are not there, or do not say which ends a text.
    """
    values = file.metadata
    tokens, kinds = values.get("tokenizer.ggml.tokens"), values.get("tokenizer.ggml.token_type")
    if not isinstance(tokens, list) or not (
        kinds is None or (isinstance(kinds, array) and kinds.typecode in "iI" and len(kinds) == len(tokens))
    ):
        raise CheckpointError(f"{file.path} must have tokenizer.ggml.tokens, and as many tokenizer.ggml.token_type")
    end = values.get("tokenizer.ggml.eos_token_id", values.get("tokenizer.ggml.bos_token_id"))
    if end is None and END_OF_TEXT in tokens:
        end = tokens.index(END_OF_TEXT)
    if type(end) is not int or not 0 <= end < len(tokens):
        raise CheckpointError(
            f"tokenizer.ggml.eos_token_id ({end!r}) in {file.path} must be the id of one of its {len(tokens)} tokens"
        )
    found = _Tokens({}, {tokens[end]: end}, {}, tokens[end])
    for id, token in enumerate(tokens):
        kind = _NORMAL if kinds is None else kinds[id]
        if kind == _UNUSED:
            continue
        group = found.words if kind == _NORMAL else found.added if kind == _USER_DEFINED else found.special
        if group.setdefault(token, id) != id:
            raise CheckpointError(f"{file.path} has the token {token!r} twice, as {group[token]} and {id}")
    return found


def _of_characters(file: GgufFile, tokens: _Tokens) -> Tokenizer:
    r"""One of our tokenizers of characters, whose words the exporter writes as `\xe2\x82\xac`."""
    if not all(re.fullmatch(r"(\\x[0-9a-f]{2})+", word) for word in tokens.words):
        raise CheckpointError(f"tokenizer.ggml.model ('rwkv') in {file.path} must be one that minigpt wrote")
    words = {bytes.fromhex(word.replace(r"\x", "")): id for word, id in tokens.words.items()}
    return Tokenizer(Vocabulary(words, (), tokens.special, tokens.end_of_text, by_character=True))
