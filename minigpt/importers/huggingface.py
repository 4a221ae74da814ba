"""Imports GPT-2 models of transformers, of any version: config.json, a tokenizer and weights in one file or several.

Options in config.json that only scale the attention are multiplied into the weights.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minigpt.config import GPTConfig
from minigpt.errors import CheckpointError
from minigpt.importers.imported_model import (
    ImportedModel,
    check_vocabulary,
    may_use_gpt2_vocabulary,
    tokenizer_notes,
)
from minigpt.importers.tensor_sources import WrappedTensors
from minigpt.storage.checkpoint import CONFIG
from minigpt.storage.files import read_json
from minigpt.storage.huggingface import (
    TensorSource,
    check_size,
    config_from_huggingface,
    infer_config,
    plain_name,
    unused_heads,
)
from minigpt.tokenizer.config_files import read_end_ids
from minigpt.tokenizer.files import has_tokenizer
from minigpt.tokenizer.ids_only import IdsOnly
from minigpt.tokenizer.tokenizer import Tokenizer

# The options that scale the attention, with GPT-2's values. Other values are equal to a factor on the queries.
_SCALES = {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False}
SCALED_QUERIES = "scaled_queries"  # key in the metadata of an import's weights if these options were multiplied in
GPT2_VOCABULARY_ASSUMED = "no tokenizer next to the weights: GPT-2's vocabulary is assumed"  # a note


def open_huggingface(weights: Path, tensors: TensorSource, *, ids_only: bool = False) -> ImportedModel:
    """The model with these open weights, and the config.json and tokenizer next to them; with `ids_only` without one.

    Raises: CheckpointError if it is not a GPT-2 or its tokenizer does not belong to it; TokenizerError.
    """
    path = weights.parent / CONFIG
    notes: list[str] = []
    if path.exists():
        values = read_json(path)
        scaled = scales_attention(values)
        config = config_from_huggingface({**values, **{name: _SCALES[name] for name in scaled}}, path)
        if scaled:
            check_size(config, tensors)
            tensors = ScaledQueries(tensors, _query_factors(scaled, config))
            options = " and ".join(f"{name} ({value})" for name, value in scaled.items())
            notes.append(f"{options} is multiplied into the weights of the queries, which gives the same outputs")
    else:
        config = infer_config(tensors)
        notes.append(f"no {CONFIG} next to {weights.name}: {config.n_head} heads of 64 are assumed, as in every GPT-2")
    tokenizer, assumed = _ids_only(weights.parent, config) if ids_only else _read_tokenizer(weights.parent, config)
    notes += assumed
    notes += check_vocabulary(tokenizer, config, weights.parent)
    return ImportedModel(config, tensors, tokenizer, (*notes, *unused_heads(tensors)))


def scales_attention(values: Mapping[str, Any]) -> dict[str, bool]:
    """The options of a config.json that scale the attention differently from GPT-2, with their values."""
    return {name: values[name] for name, usual in _SCALES.items() if values.get(name) is (not usual)}


def _query_factors(scaled: Mapping[str, Any], config: GPTConfig) -> list[float]:
    """The factor on each layer's queries that makes GPT-2's scale give what the options ask for."""
    common = math.sqrt(config.head_width) if "scale_attn_weights" in scaled else 1.0
    by_layer = "scale_attn_by_inverse_layer_idx" in scaled
    return [common / (layer + 1) if by_layer else common for layer in range(config.n_layer)]


def _ids_only(folder: Path, config: GPTConfig) -> tuple[Tokenizer, list[str]]:
    """What stands for the tokenizer of a model that has none, and a note.

    Raises: TokenizerError if a file that names the end of a text is damaged.
    """
    known = [id for id in read_end_ids(folder) if 0 <= id < config.vocab_size]
    end, *others = known or [config.vocab_size - 1]
    ends = f"each of the ids {', '.join(map(str, known))} ends" if others else f"the id {end} ends"
    note = f"no tokenizer: texts are token ids with spaces between them, and {ends} a text"
    return Tokenizer(IdsOnly(config.vocab_size, end)).with_end_ids(others), [
        note if known else f"{note}, because config.json names no other"
    ]


def _read_tokenizer(folder: Path, config: GPTConfig) -> tuple[Tokenizer, list[str]]:
    """The tokenizer next to the weights, or GPT-2's for a model of its vocabulary size, and notes on what was assumed.

    Raises: TokenizerError if it is not supported; CheckpointError if it does not belong to the model.
    """
    if has_tokenizer(folder):
        tokenizer = Tokenizer.load(folder)
        if tokenizer.vocab_size <= config.vocab_size:
            return tokenizer, tokenizer_notes(tokenizer)
    else:
        tokenizer = Tokenizer.named("gpt2").with_end_ids(read_end_ids(folder))
        if may_use_gpt2_vocabulary(config):
            return tokenizer, [GPT2_VOCABULARY_ASSUMED]
        raise CheckpointError(
            f"{folder} has no tokenizer, and its model has {config.vocab_size} tokens, not GPT-2's 50257;"
            " put the tokenizer.json that belongs to the model next to it, or import it for token ids only with"
            " --tokenizer none"
        )
    raise CheckpointError(
        f"{folder} has a model of {config.vocab_size} tokens, but its tokenizer ({tokenizer.name}) has"
        f" {tokenizer.vocab_size}; put the tokenizer.json that belongs to the model next to it"
    )


class ScaledQueries(WrappedTensors):
    """Another source's tensors; the queries are multiplied by one factor per layer."""

    def __init__(self, source: TensorSource, factors: list[float]) -> None:
        super().__init__(source)
        layers = [f"h.{layer}.attn.c_attn." for layer in range(len(factors))]
        by_name = {
            layer + kind: factor for layer, factor in zip(layers, factors, strict=True) for kind in ("weight", "bias")
        }
        self._factors = {name: by_name[plain] for name in source.shapes if (plain := plain_name(name)) in by_name}

    def read(self, name: str, *, reuse_buffer: bool = False) -> Tensor:
        """One tensor; with `reuse_buffer` in memory that the next such read may overwrite.

        Raises: as the source does.
        """
        tensor = super().read(name, reuse_buffer=reuse_buffer)
        if name in self._factors:
            tensor = tensor.float()  # first, because half precision would round the product again
            tensor[..., : tensor.shape[-1] // 3] *= self._factors[name]
        return tensor

    def map(self, name: str, dtype: torch.dtype) -> Tensor | None:
        """One tensor memory-mapped from the source's file, or None.

        Raises: as `read`.
        """
        return None if name in self._factors else super().map(name, dtype)
