"""Writes a LoRA adapter as a GGUF file for llama.cpp, which adds it to the GGUF file of its base model.

Source: llama.cpp, convert_lora_to_gguf.py (keys and names) and src/llama-adapter.cpp (shapes and the scale).
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from minigpt.config import GPTConfig
from minigpt.errors import CheckpointError
from minigpt.importers.gguf import gguf_name
from minigpt.importers.gguf_file import GgufFile
from minigpt.importers.peft import Adapter, AdapterLayer
from minigpt.storage.huggingface import linear_layers
from minigpt.storage.names import encodable, plain_source

_SMALLEST_ALPHA, _LARGEST_ALPHA = 1e-30, 1e30


def write_gguf_adapter(file: BinaryIO, adapter: Adapter, config: GPTConfig, name: str) -> None:
    """Writes an adapter of a model of this shape into an open named file.

    llama.cpp scales every product by alpha / r, with one alpha; a layer with another scale has it in its matrix B.
    Raises: CheckpointError for an adapter with DoRA or whole tensors, which GGUF cannot express; OSError.
    """
    import gguf

    for layer in adapter.layers.values():
        if layer.magnitude is not None:
            raise CheckpointError(f"{adapter.directory} uses DoRA, which GGUF adapters do not have; merge it first")
    if adapter.replaced:
        raise CheckpointError(
            f"{adapter.directory} replaces {next(iter(adapter.replaced))!r}, and GGUF adapters only add to matrices; "
            f"merge it first: minigpt merge {adapter.directory}"
        )
    writer = gguf.GGUFWriter(file.name, gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH.GPT2])
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_name(encodable(name))
    if adapter.base is not None:
        writer.add_base_model_count(1)
        writer.add_base_model_name(0, encodable(plain_source(adapter.base)))
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    # llama.cpp reads an alpha of 0 as "not scaled". It is a float32 in the file.
    alphas = (layer.alpha for layer in adapter.layers.values())
    alpha = next((each for each in alphas if _SMALLEST_ALPHA <= abs(each) <= _LARGEST_ALPHA), 1.0)
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, alpha)
    names = {stored: own for own, stored in linear_layers(config).items()}
    for stored, layer in adapter.layers.items():
        own = gguf_name(f"{names[stored]}.weight")
        b = layer.b * (layer.scale * layer.rank / alpha)
        writer.add_tensor(f"{own}.lora_a", np.ascontiguousarray(layer.a.numpy()))  # (r, in)
        writer.add_tensor(f"{own}.lora_b", np.ascontiguousarray(b.numpy()))  # (out, r)
    with closing(writer):
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()


def read_gguf_adapter(path: Path, like: Adapter, config: GPTConfig) -> Adapter:
    """The adapter in a GGUF file, as llama.cpp computes it, with the layers of `like`.

    Raises: CheckpointError if the file is damaged.
    """
    file = GgufFile(path)
    with closing(file):
        alpha = float(file.metadata["adapter.lora.alpha"])
        names = {stored: own for own, stored in linear_layers(config).items()}
        layers = {}
        for stored in like.layers:
            own = gguf_name(f"{names[stored]}.weight")
            a, b = file.read(f"{own}.lora_a"), file.read(f"{own}.lora_b")
            layers[stored] = AdapterLayer(a, b, alpha, alpha / len(a))
    return replace(like, layers=layers)
