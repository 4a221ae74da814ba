"""Chooses the engine for a model: decode.c, CUDA graphs or PyTorch."""

from typing import Literal

import torch

from minigpt.errors import ConfigError
from minigpt.generation.engines import native
from minigpt.generation.engines.cuda_graphs import GraphEngine
from minigpt.generation.engines.engine import Engine
from minigpt.generation.engines.native import NativeEngine
from minigpt.generation.engines.pytorch import TorchEngine
from minigpt.model.gpt import GPT

Quantization = Literal["auto", "none", "int8"]

_INT8_FROM = 50_000_000  # parameters: no processor's cache holds them, so memory bandwidth sets the speed


def resolve_engine(model: GPT, quantization: Quantization = "none", *, compiled: bool = False) -> Engine:
    """The fastest engine for a model on its device.

    | model                                        | engine         |
    |----------------------------------------------|----------------|
    | float32 on a CPU, if decode.c is compiled    | `NativeEngine` |
    | on CUDA                                      | `GraphEngine`  |
    | everything else                              | `TorchEngine`  |

    `quantization` is that of the weights of `NativeEngine`; "auto" chooses int8 from 50 million parameters on.
    `compiled` compiles the CUDA step with torch.compile, which takes about a minute.

    Raises: ConfigError for int8 if `NativeEngine` cannot run the model; for `compiled` without CUDA.
    """
    weight = model.token_embedding.weight
    on_cuda = weight.device.type == "cuda"
    if compiled and not on_cuda:
        raise ConfigError(f"compile needs CUDA, but the model is on {weight.device}; omit it")
    is_native = runs_natively(model)
    if quantization == "auto":
        quantization = "int8" if is_native and model.config.n_parameters >= _INT8_FROM else "none"
    if is_native:
        return NativeEngine(model, quantization)
    if quantization != "none":
        dtype = str(weight.dtype).removeprefix("torch.")
        reason = native.why_unavailable() or f"the weights are {dtype} on {weight.device}"
        raise ConfigError(
            f"quantize ({quantization!r}) needs float32 weights on a CPU and the compiled decode step; {reason}"
        )
    return GraphEngine(model, compiled=compiled) if on_cuda else TorchEngine(model)


def runs_natively(model: GPT) -> bool:
    """Whether decode.c is compiled and can run this model: float32 on a CPU, with the tanh form of GELU."""
    if model.config.activation_function != "gelu_new":
        return False
    weight = model.token_embedding.weight
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and native.library() is not None
