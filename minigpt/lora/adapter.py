"""Writes an adapter in the format of Hugging Face's peft, and reads it back into the model that it was written from.

`minigpt.lora.peft` reads the adapters of every program.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minigpt.errors import CheckpointError
from minigpt.lora.layers import LoRA, lora_layers, lora_of
from minigpt.model.gpt import GPT
from minigpt.storage.folder import Content
from minigpt.storage.huggingface import EMBEDDING_MODULE, HEAD_MODULE, PREFIX, linear_layers, stored_tensors
from minigpt.storage.names import ADAPTER_WEIGHTS
from minigpt.storage.tensors import TensorFile, tensor_content

BASE_SHA256 = "base_sha256"  # key in the metadata of an adapter's tensors: the `weights_hash` of its base
_PEFT = "base_model.model."  # before the name of every tensor


def adapter_config(model: GPT, base: str | None) -> dict[str, Any]:
    """The content of adapter_config.json; `base` is the name or the path of the base model.

    Source: https://huggingface.co/docs/peft, "PEFT checkpoint format".
    """
    lora = lora_of(model)
    assert lora is not None
    stored = linear_layers(model.config)
    targets = [stored[f"blocks.0.{name}"].removeprefix("h.0.") for name in _paths(model)]
    blocks = list(range(lora.first_block, model.config.n_layer)) if lora.first_block else None
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "inference_mode": True,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        "target_modules": targets,
        "layers_to_transform": blocks,
        "layers_pattern": None if blocks is None else "h",
        "fan_in_fan_out": True,  # transformers' GPT-2 stores the transpose of torch's linear layers
        "bias": "none",
        **_embedding_config(lora),
        "rank_pattern": {},
        "alpha_pattern": {},
        "use_rslora": False,
        "use_dora": False,
        "init_lora_weights": True,
    }


def _embedding_config(lora: LoRA) -> dict[str, Any]:
    """What makes peft use the trained embedding in both places, since transformers names it twice."""
    if not lora.embedding:
        return {"modules_to_save": None}
    return {"modules_to_save": [EMBEDDING_MODULE, HEAD_MODULE], "ensure_weight_tying": True}


def _paths(model: GPT) -> list[str]:
    """The adapted layers of a block, such as "attention.qkv_proj"."""
    return list(dict.fromkeys(name.split(".", 2)[2] for name, _ in lora_layers(model)))


def adapter_weights(model: GPT, metadata: Mapping[str, str]) -> Content:
    """The content of adapter_model.safetensors."""
    tensors = {stored: parameter.detach() for stored, _, parameter in _stored_parameters(model)}
    return tensor_content(tensors, {"format": "pt", **metadata})


def read_adapter_weights(directory: Path, model: GPT) -> dict[str, Tensor]:
    """The tensors of an adapter that `adapter_weights` has, under the names of `trained_state`.

    Raises: CheckpointError if the file is missing or damaged, or of an adapter of another shape.
    """
    path, state = directory / ADAPTER_WEIGHTS, {}
    with TensorFile(path) as file:
        shapes = file.shapes
        for stored, name, parameter in _stored_parameters(model):
            if shapes.get(stored) != tuple(parameter.shape):
                raise CheckpointError(
                    f"{stored!r} in {path} has shape {shapes.get(stored)}, expected {tuple(parameter.shape)}; copy it "
                    "again"
                )
            if name not in state:
                state[name] = file.read(stored).float()
    return state


def _stored_parameters(model: GPT) -> Iterator[tuple[str, str, Tensor]]:
    """Every trained tensor: its name in the file, its name in `trained_state`, and itself.

    A trained embedding is stored twice, as peft does it: a version that does not tie the two would keep the base's
    output head.
    """
    stored = linear_layers(model.config)
    for name, layer in lora_layers(model):
        for key, parameter in (("lora_A", layer.lora_a), ("lora_B", layer.lora_b)):
            yield f"{_PEFT}{PREFIX}{stored[name]}.{key}.weight", f"{name}.{key.lower()}", parameter
    if (lora := lora_of(model)) is not None and lora.embedding:
        for stored_name in (f"{PREFIX}{EMBEDDING_MODULE}", HEAD_MODULE):
            yield f"{_PEFT}{stored_name}.weight", "token_embedding.weight", model.token_embedding.weight


def weights_hash(model: GPT) -> str:
    """A hexadecimal hash of a model's weights in float32, the same whatever file format they were read from.

    Hashes tensors in parallel: 500 MB take about 0.2 s on two cores.
    """
    state = model.state_dict()

    def digest(name: str, transposed: bool) -> bytes:
        tensor = state[name].detach().to("cpu", torch.float32)
        whole = (tensor.t() if transposed else tensor).contiguous()  # mapped matrices are contiguous transposed
        return hashlib.sha256(whole.numpy().data).digest()

    with ThreadPoolExecutor() as pool:
        stored = list(stored_tensors(model.config))
        digests = list(pool.map(lambda each: digest(each.name, each.transposed), stored))
    return hashlib.sha256(json.dumps(model.config.n_head).encode() + b"".join(digests)).hexdigest()
