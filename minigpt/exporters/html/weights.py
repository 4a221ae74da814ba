"""Weights of a model in int8, as the page holds them, and the model that they stand for.

The matrices and scales are those of `minigpt generate --quantize int8` (decode.c), which looks up a token's embedding
in the same int8 matrix that computes the logits.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from minigpt.config import GPTConfig
from minigpt.model.gpt import GPT

_LANES, _GROUP = 16, 4  # outputs and inputs of an int8 panel, as in decode.c
Array = npt.NDArray[Any]


def to_arrays(model: GPT) -> Iterator[tuple[str, Array]]:
    """The arrays of a page by name, one after the other."""
    for name, module in _parts(model):
        if isinstance(module, nn.LayerNorm):
            yield f"{name}.weight", _float32(module.weight)
        else:
            values, scale = _rounded(_float32(module.weight))
            yield name, _to_panels(values)
            yield f"{name}.scale", np.pad(scale, (0, -len(scale) % _LANES))
        if not isinstance(module, nn.Embedding):
            yield f"{name}.bias", _float32(module.bias)
    yield "position_embedding", _float32(model.position_embedding.weight)


@torch.no_grad()
def from_arrays(config: GPTConfig, arrays: Mapping[str, bytes]) -> GPT:
    """The model in float32 that the arrays of a page stand for."""
    model = GPT(config)

    def floats(name: str) -> Tensor:
        return torch.from_numpy(np.frombuffer(arrays[name], np.float32).copy())

    for name, module in _parts(model):
        if isinstance(module, nn.LayerNorm):
            module.weight.copy_(floats(f"{name}.weight"))
        else:
            out, width = module.weight.shape
            values = _from_panels(np.frombuffer(arrays[name], np.int8), out, width).astype(np.float32)
            module.weight.copy_(torch.from_numpy(values) * floats(f"{name}.scale")[:out, None])
        if not isinstance(module, nn.Embedding):
            module.bias.copy_(floats(f"{name}.bias"))
    model.position_embedding.weight.copy_(floats("position_embedding").view(-1, config.n_embd))
    return model.eval()


def _parts(model: GPT) -> Iterator[tuple[str, nn.LayerNorm | nn.Linear | nn.Embedding]]:
    """The modules of a model by their names in a page, but the position embedding, which is in float32."""
    block: Any
    for index, block in enumerate(model.blocks):
        yield f"layers.{index}.attention_norm", block.attention_norm
        yield f"layers.{index}.qkv_proj", block.attention.qkv_proj
        yield f"layers.{index}.out_proj", block.attention.out_proj
        yield f"layers.{index}.mlp_norm", block.mlp_norm
        yield f"layers.{index}.up_proj", block.mlp.up_proj
        yield f"layers.{index}.down_proj", block.mlp.down_proj
    yield "final_norm", model.final_norm
    yield "head", model.token_embedding


def _float32(tensor: Tensor) -> npt.NDArray[np.float32]:
    return np.ascontiguousarray(tensor.detach().float().cpu().numpy())


def _rounded(rows: npt.NDArray[np.float32]) -> tuple[Array, Array]:
    """Rows as integers whose largest is 127, in the arithmetic of decode.c: (values, scales)."""
    largest = np.abs(rows).max(axis=1)
    with np.errstate(divide="ignore"):
        inverse = np.where(largest > 1e-35, np.float32(127) / largest, np.float32(0)).astype(np.float32)
    return np.rint(rows * inverse[:, None]), (largest / np.float32(127)).astype(np.float32)


def _to_panels(values: Array) -> Array:
    """int8 values (out, in) in panels of 16 outputs: (out / 16, in / 4, 16, 4), padded with 0."""
    out, width = values.shape
    padded = np.pad(values, ((0, -out % _LANES), (0, -width % _GROUP))).astype(np.int8)
    panels = padded.reshape(-1, _LANES, padded.shape[1] // _GROUP, _GROUP)
    return np.ascontiguousarray(panels.transpose(0, 2, 1, 3))


def _from_panels(values: Array, out: int, width: int) -> Array:
    """The inverse of `_to_panels`: -> (out, in)."""
    groups = -(-width // _GROUP)
    panels = values.reshape(-1, groups, _LANES, _GROUP).transpose(0, 2, 1, 3)
    return panels.reshape(-1, groups * _GROUP)[:out, :width]
