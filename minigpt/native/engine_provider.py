"""Which models decode.c runs, and with which weights."""

import functools
from typing import Literal

import torch
from torch import nn

from minigpt.config import GPTConfig
from minigpt.errors import ConfigError
from minigpt.generation.engine import Engine
from minigpt.generation.engine_settings import Quantization
from minigpt.generation.resolve_engine import EngineProvider
from minigpt.model.gpt import GPT
from minigpt.native.accelerate import accelerate
from minigpt.native.compiled import library, why_unavailable
from minigpt.native.engine import NativeEngine

_INT8_FROM = 50_000_000  # parameters: no processor's cache holds them, so memory bandwidth sets the speed


class NativeEngines(EngineProvider):
    """The engines of decode.c."""

    def engine(self, model: GPT, quantization: Quantization, *, compiled: bool) -> Engine | None:  # noqa: ARG002
        fitting = fitting_quantization(model, quantization)
        return None if fitting is None else NativeEngine(model, fitting)

    def why_unavailable(self, model: GPT) -> str:
        reason = why_unavailable()
        return "" if not reason or _model_obstacle(model) else reason


ENGINES = NativeEngines()


def fitting_quantization(model: GPT, quantization: Quantization) -> Literal["none", "int8"] | None:
    """The quantization that "auto" stands for; None if decode.c cannot run the model.

    Raises: ConfigError for int8 if it cannot.
    """
    obstacle = _obstacle(model)
    if obstacle and quantization == "int8":
        raise ConfigError(
            f"quantize ({quantization!r}) needs float32 weights on a CPU and the compiled decode step; {obstacle}"
        )
    if obstacle:
        return None
    if quantization == "auto":
        return "none" if model.config.n_parameters < _INT8_FROM else "int8"
    return quantization


def _obstacle(model: GPT) -> str:
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
    if any(name.endswith("_proj.base") for name, _ in model.named_modules()):  # a linear layer inside another
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
