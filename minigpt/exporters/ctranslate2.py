"""Writes a model as a CTranslate2 folder.

It has what CTranslate2's own converter writes for GPT-2, and the layer norms' epsilon, without which the runtime uses
1e-5.
"""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from minigpt.model.gpt import GPT
from minigpt.tokenizer.tokenizer import Tokenizer

_DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "int8": "int8"}
CTRANSLATE2_DTYPES = tuple(_DTYPES)


@torch.no_grad()
def write_ctranslate2(folder: Path, model: GPT, tokenizer: Tokenizer, dtype: str) -> tuple[str, ...]:
    """Writes a model into an existing folder, without the tokenizer's files; returns notes for the user.

    `dtype` is one of CTRANSLATE2_DTYPES. CTranslate2 has a name for every row of the embedding: rows after the last
    token are dropped, and unused ids before it get a name that no text has.
    Raises: OSError.
    """
    from ctranslate2.specs.common_spec import Activation
    from ctranslate2.specs.transformer_spec import TransformerDecoderModelSpec

    config, tokens = model.config, tokenizer.token_strings
    activation = Activation.GELUTanh if config.activation_function == "gelu_new" else Activation.GELU
    spec = TransformerDecoderModelSpec.from_config(config.n_layer, config.n_head, activation=activation)
    decoder, rows = spec.decoder, model.token_embedding.weight[: len(tokens)].contiguous()
    decoder.scale_embeddings = False
    decoder.embeddings.weight = decoder.projection.weight = rows  # (V, C)
    decoder.position_encodings.encodings = model.position_embedding.weight.contiguous()
    _norm(decoder.layer_norm, model.final_norm)
    block: Any
    for layer, block in zip(decoder.layer, model.blocks, strict=True):
        _norm(layer.self_attention.layer_norm, block.attention_norm)
        _linear(layer.self_attention.linear[0], block.attention.qkv_proj)
        _linear(layer.self_attention.linear[1], block.attention.out_proj)
        _norm(layer.ffn.layer_norm, block.mlp_norm)
        _linear(layer.ffn.linear_0, block.mlp.up_proj)
        _linear(layer.ffn.linear_1, block.mlp.down_proj)
    spec.register_vocabulary([token or f"[PAD{id}]" for id, token in enumerate(tokens)])
    spec.config.bos_token = tokens[tokenizer.special_id("bos_token")]
    spec.config.unk_token = tokenizer.unknown or tokens[tokenizer.special_id("unk_token")]
    spec.config.eos_token = tokens[tokenizer.end_of_text]
    spec.config.layer_norm_epsilon = config.layer_norm_epsilon
    spec.validate()
    spec.optimize(quantization=_DTYPES[dtype])
    spec.save(str(folder))
    notes = []
    if config.vocab_size > len(tokens):
        notes.append(f"the export has only the {len(tokens)} ids that have a token")
    if len(tokenizer.end_ids) > 1:
        ends = [*tokenizer.end_ids]
        notes.append(f"CTranslate2 ends a text at one token only; give generate_batch end_token={ends}")
    return tuple(notes)


def _norm(spec: Any, norm: nn.LayerNorm) -> None:
    spec.gamma, spec.beta = norm.weight, norm.bias


def _linear(spec: Any, linear: nn.Linear) -> None:
    spec.weight, spec.bias = linear.weight.contiguous(), linear.bias
