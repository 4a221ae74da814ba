"""A GPT-2 as transformers leaves one, of whatever age: config.json, weights in one file or several, a tokenizer.

It is given its weights open. Options of config.json that only scale the attention are put into the weights.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minigpt.config import GPTConfig
from minigpt.errors import CheckpointError
from minigpt.importers.imported_model import ImportedModel
from minigpt.importers.vocabulary_check import fit, may_use_gpt2_vocabulary
from minigpt.storage.checkpoint import CONFIG
from minigpt.storage.files import read_json
from minigpt.storage.huggingface import TensorSource, config_from_huggingface, infer_config, left_out, plain_name
from minigpt.tokenizer.tokenizer import Tokenizer

# What scales the attention, and how it is in GPT-2: anything else is a factor on the queries.
_SCALES = {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False}
_TOKENIZERS = ("tokenizer.json", "merges.txt", "vocab.json", "vocab.bpe")
OTHER_TOKENIZERS = ("vocab.txt", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model")
GPT2_WORDS_ASSUMED = "no tokenizer beside the weights: its words are taken to be GPT-2's"  # a note


def open_huggingface(weights: Path, tensors: TensorSource) -> ImportedModel:
    """The model whose weights these are, with the config.json and the tokenizer beside them.

    Raises: CheckpointError where it is not a GPT-2 or its tokenizer does not fit; TokenizerError.
    """
    path = weights.parent / CONFIG
    notes: list[str] = []
    if path.exists():
        values = read_json(path)
        scaled = scales_attention(values)
        config = config_from_huggingface({**values, **{name: _SCALES[name] for name in scaled}}, path)
        if scaled:
            tensors = ScaledQueries(tensors, _query_factors(scaled, config))
            options = " and ".join(f"{name} ({value})" for name, value in scaled.items())
            notes.append(f"{options} is put into the weights of the queries, which is the same model")
    else:
        config = infer_config(tensors)
        notes.append(f"no {CONFIG} beside {weights.name}: {config.n_head} heads of 64 are assumed, as in every GPT-2")
    tokenizer, assumed = _tokenizer_of(weights.parent, config)
    notes += assumed
    notes += fit(tokenizer, config, weights.parent)
    return ImportedModel(config, tensors, tokenizer, (*notes, *left_out(tensors)))


def scales_attention(values: Mapping[str, Any]) -> dict[str, bool]:
    """The options of a config.json that scale the attention otherwise than GPT-2 does, with their values."""
    return {name: values[name] for name, usual in _SCALES.items() if values.get(name) is (not usual)}


def _query_factors(scaled: Mapping[str, Any], config: GPTConfig) -> list[float]:
    """What the queries of each layer are multiplied with, so that GPT-2's own scale gives what the options ask for."""
    common = math.sqrt(config.head_width) if "scale_attn_weights" in scaled else 1.0
    by_layer = "scale_attn_by_inverse_layer_idx" in scaled
    return [common / (layer + 1) if by_layer else common for layer in range(config.n_layer)]


def _tokenizer_of(folder: Path, config: GPTConfig) -> tuple[Tokenizer, list[str]]:
    """The tokenizer beside the weights, or GPT-2's for a vocabulary of its size, padded or not; and what was assumed.

    Raises: TokenizerError where it is not one of ours; CheckpointError where it does not fit the model.
    """
    if any((folder / name).exists() for name in _TOKENIZERS):
        tokenizer = Tokenizer.load(folder)
        if tokenizer.vocab_size <= config.vocab_size:
            return tokenizer, []
    else:
        other = next((name for name in OTHER_TOKENIZERS if (folder / name).exists()), None)
        if other:
            raise CheckpointError(
                f"{folder} has its words in {other}, which is no byte-level BPE as GPT-2's; they cannot be read here"
            )
        tokenizer = Tokenizer.named("gpt2")
        if may_use_gpt2_vocabulary(config):
            return tokenizer, [GPT2_WORDS_ASSUMED]
        raise CheckpointError(
            f"{folder} has no tokenizer, and its model of {config.vocab_size} words is none of GPT-2's size;"
            " put the tokenizer.json that belongs to the model beside it"
        )
    raise CheckpointError(
        f"{folder} has a model of {config.vocab_size} words, and its tokenizer ({tokenizer.name}) has"
        f" {tokenizer.vocab_size}; put the tokenizer.json that belongs to the model beside it"
    )


class ScaledQueries:
    """A source whose queries are multiplied with a factor for each layer."""

    def __init__(self, source: TensorSource, factors: list[float]) -> None:
        self.path, self._source = source.path, source
        layers = [f"h.{layer}.attn.c_attn." for layer in range(len(factors))]
        by_name = {
            layer + kind: factor for layer, factor in zip(layers, factors, strict=True) for kind in ("weight", "bias")
        }
        self._factors = {name: by_name[plain] for name in source.shapes if (plain := plain_name(name)) in by_name}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor's name and shape."""
        return self._source.shapes

    def read(self, name: str) -> Tensor:
        """One tensor, in memory of its own.

        Raises: as the source does.
        """
        return self._scaled(name, self._source.read(name))

    def borrow(self, name: str) -> Tensor:
        """One tensor, in memory that the next borrowing may overwrite.

        Raises: as `read`.
        """
        return self._scaled(name, self._source.borrow(name))

    def _scaled(self, name: str, tensor: Tensor) -> Tensor:
        if name in self._factors:
            tensor = tensor.float()  # before the factor, whose product half precision would round once more
            tensor[..., : tensor.shape[-1] // 3] *= self._factors[name]
        return tensor

    def map(self, name: str, dtype: torch.dtype) -> Tensor | None:
        """One tensor where it lies in the file, or None.

        Raises: as `read`.
        """
        return None if name in self._factors else self._source.map(name, dtype)

    def close(self) -> None:
        """Lets go of the source."""
        self._source.close()
