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
from minigpt.model.gpt import GPT, Block

_LANES, _GROUP = 16, 4  # outputs and inputs of an int8 panel, as in decode.c
Array = npt.NDArray[Any]


def to_arrays(model: GPT) -> Iterator[tuple[str, Array]]:
    """The arrays of a page by name, one after the other."""
    for index, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        yield from _norm(f"layers.{index}.attention_norm", block.attention_norm)
        yield from _linear(f"layers.{index}.qkv_proj", block.attention.qkv_proj)
        yield from _linear(f"layers.{index}.out_proj", block.attention.out_proj)
        yield from _norm(f"layers.{index}.mlp_norm", block.mlp_norm)
        yield from _linear(f"layers.{index}.up_proj", block.mlp.up_proj)
        yield from _linear(f"layers.{index}.down_proj", block.mlp.down_proj)
    yield from _norm("final_norm", model.final_norm)
    values, scale = _rounded(_float32(model.token_embedding.weight))
    yield "head", _to_panels(values)
    yield "head.scale", _padded(scale)
    yield "position_embedding", _float32(model.position_embedding.weight)


def from_arrays(config: GPTConfig, arrays: Mapping[str, bytes]) -> GPT:
    """The model in float32 that the arrays of a page stand for."""
    model = GPT(config)
    c = config.n_embd

    def floats(name: str) -> Tensor:
        return torch.from_numpy(np.frombuffer(arrays[name], np.float32).copy())

    def matrix(name: str, out: int, width: int) -> Tensor:
        values = _from_panels(np.frombuffer(arrays[name], np.int8), out, width)
        return torch.from_numpy(values.astype(np.float32)) * floats(f"{name}.scale")[:out, None]

    with torch.no_grad():
        for index, block in enumerate(model.blocks):
            assert isinstance(block, Block)
            prefix = f"layers.{index}."
            for name, linear in {
                "qkv_proj": block.attention.qkv_proj, "out_proj": block.attention.out_proj,
                "up_proj": block.mlp.up_proj, "down_proj": block.mlp.down_proj,
            }.items():  # fmt: skip
                linear.weight.copy_(matrix(prefix + name, *linear.weight.shape))
                linear.bias.copy_(floats(f"{prefix}{name}.bias"))
            for name, norm in {"attention_norm": block.attention_norm, "mlp_norm": block.mlp_norm}.items():
                norm.weight.copy_(floats(f"{prefix}{name}.weight"))
                norm.bias.copy_(floats(f"{prefix}{name}.bias"))
        model.final_norm.weight.copy_(floats("final_norm.weight"))
        model.final_norm.bias.copy_(floats("final_norm.bias"))
        model.token_embedding.weight.copy_(matrix("head", config.vocab_size, c))
        model.position_embedding.weight.copy_(floats("position_embedding").view(-1, c))
    return model.eval()


def _norm(name: str, norm: nn.Module) -> Iterator[tuple[str, Array]]:
    assert isinstance(norm.weight, Tensor)
    assert isinstance(norm.bias, Tensor)
    yield f"{name}.weight", _float32(norm.weight)
    yield f"{name}.bias", _float32(norm.bias)


def _linear(name: str, linear: nn.Linear) -> Iterator[tuple[str, Array]]:
    values, scale = _rounded(_float32(linear.weight))
    yield name, _to_panels(values)
    yield f"{name}.scale", _padded(scale)
    yield f"{name}.bias", _float32(linear.bias)


def _float32(tensor: Tensor) -> npt.NDArray[np.float32]:
    return np.ascontiguousarray(tensor.detach().float().cpu().numpy())


def _rounded(rows: npt.NDArray[np.float32]) -> tuple[Array, Array]:
    """Rows as integers whose largest is 127, in the arithmetic of decode.c: (values, scales)."""
    largest = np.abs(rows).max(axis=1)
    with np.errstate(divide="ignore"):
        inverse = np.where(largest > 1e-35, np.float32(127) / largest, np.float32(0)).astype(np.float32)
    return np.rint(rows * inverse[:, None]), (largest / np.float32(127)).astype(np.float32)


def _padded(scale: Array) -> Array:
    return np.pad(scale, (0, -len(scale) % _LANES))


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
