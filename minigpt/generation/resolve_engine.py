"""Chooses the engine for a model: decode.c, CUDA graphs or PyTorch."""

import functools
from typing import Literal, get_args

import torch
from torch import nn

from minigpt.config import GPTConfig
from minigpt.cuda.graphs import CudaSlots, GraphEngine
from minigpt.errors import ConfigError
from minigpt.generation.engine import Engine
from minigpt.generation.slots import Slots
from minigpt.lora.layers import lora_of
from minigpt.model.gpt import GPT
from minigpt.native.accelerate import accelerate
from minigpt.native.compiled import library, why_unavailable
from minigpt.native.engine import NativeEngine, NativeSlots

Quantization = Literal["auto", "none", "int8"]

_INT8_FROM = 50_000_000  # parameters: no processor's cache holds them, so memory bandwidth sets the speed


def resolve_engine(model: GPT, quantization: Quantization = "none", *, compiled: bool = False) -> Engine:
    """The fastest engine for a model on its device.

    | model                                                                | engine         |
    |----------------------------------------------------------------------|----------------|
    | float32 on a CPU with GPT-2's form of GELU, with compiled C code     | `NativeEngine` |
    | on CUDA                                                              | `GraphEngine`  |
    | any other                                                            | `Engine`       |

    `quantization` is that of the weights of `NativeEngine`; "auto" chooses int8 from 50 million parameters on.
    `compiled` compiles the CUDA step with torch.compile, which takes about a minute.

    Raises: ConfigError for int8 if `NativeEngine` cannot run the model; for `compiled` without CUDA.
    """
    device = model.token_embedding.weight.device
    on_cuda = device.type == "cuda"
    if compiled and not on_cuda:
        raise ConfigError(f"compile needs CUDA, but the model is on {device}; omit it")
    quantization, native_fits = _resolve_quantization(model, quantization)
    if native_fits:
        return NativeEngine(model, quantization)
    return GraphEngine(model, compiled=compiled) if on_cuda else Engine(model)


def resolve_slots(model: GPT, n_slots: int, quantization: Quantization = "none") -> Slots:
    """The fastest slot engine for a model on its device, chosen as by `resolve_engine`.

    Raises: ConfigError for int8 if decode.c cannot run the model.
    """
    quantization, native_fits = _resolve_quantization(model, quantization)
    if native_fits:
        return NativeSlots(model, n_slots, quantization)
    on_cuda = model.token_embedding.weight.device.type == "cuda"
    return CudaSlots(model, n_slots) if on_cuda else Slots(model, n_slots)


def missing_compiled_code(model: GPT) -> str:
    """A sentence that PyTorch runs a model on a CPU because there is no compiled C code; else empty."""
    if not why_unavailable() or _model_obstacle(model):
        return ""
    return f"PyTorch generates the text, several times slower than compiled code: {why_unavailable()}"


def _resolve_quantization(model: GPT, quantization: Quantization) -> tuple[Literal["none", "int8"], bool]:
    """The quantization that "auto" stands for, and whether decode.c can run the model.

    Raises: ConfigError for int8 if it cannot, and for another value of `quantization`.
    """
    if quantization not in get_args(Quantization):
        raise ConfigError(f"quantize ({quantization!r}) must be auto, none or int8")
    obstacle = _native_obstacle(model)
    if quantization == "auto":
        quantization = "none" if obstacle or model.config.n_parameters < _INT8_FROM else "int8"
    if obstacle and quantization != "none":
        raise ConfigError(
            f"quantize ({quantization!r}) needs float32 weights on a CPU and the compiled decode step; {obstacle}"
        )
    return quantization, not obstacle


def _native_obstacle(model: GPT) -> str:
    """Why decode.c cannot run this model; empty if it can."""
    if library() is None:
        return why_unavailable()
    if obstacle := _model_obstacle(model):
        return obstacle
    small = model.config.replace(vocab_size=32, n_positions=8, n_embd=32, n_layer=2, n_head=2)
    if not {type(module) for module in model.modules()} <= _modules_of_decode_c(small):
        return "decode.c computes something else than the model's forward pass"
    return ""


def _model_obstacle(model: GPT) -> str:
    """Why decode.c is not for such a model; empty if it is."""
    weight = model.token_embedding.weight
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return f"the weights are {str(weight.dtype).removeprefix('torch.')} on {weight.device}"
    if lora_of(model) is not None:
        return "the model has an adapter that is not merged into its weights"
    if model.config.activation_function != "gelu_new":
        return f"the model has another activation function ({model.config.activation_function})"
    return ""


@functools.cache
def _modules_of_decode_c(config: GPTConfig) -> frozenset[type[nn.Module]]:
    """The kinds of modules in a GPT of this shape, if decode.c computes what it does; otherwise none.

    Tried with random weights, which takes milliseconds. If someone has changed the code of the model and not the C
    code, PyTorch generates, slower but right. torch's default device, default dtype and autocast do not matter.
    """
    generator = torch.Generator("cpu").manual_seed(0)
    # a new model draws from the global generator
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        model = GPT(config).to(torch.float32).eval()
    with torch.inference_mode(), torch.device("cpu"), torch.autocast("cpu", enabled=False):
        for parameter in model.parameters():
            parameter.normal_(std=0.5, generator=generator)
        ids = torch.arange(config.n_positions)  # (T,)
        try:
            expected = model(ids[None])[:, -1]  # (1, V)
            computed = NativeEngine(model).start([ids.tolist()])
        except Exception:  # changed code may fail in any way on a small model
            return frozenset()
    fits = torch.allclose(computed, expected, rtol=1e-3, atol=1e-2)
    kinds = {type(module) for module in model.modules()}
    accelerate(model)
    return frozenset(kinds | {type(module) for module in model.modules()}) if fits else frozenset()
