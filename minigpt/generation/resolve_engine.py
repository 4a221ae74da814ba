"""Chooses the engine for a model: the first that an installed edge has for it, else PyTorch's."""

from typing import get_args

from minigpt.edges import provided
from minigpt.errors import ConfigError
from minigpt.generation.engine import Engine
from minigpt.generation.engine_settings import Quantization
from minigpt.model.gpt import GPT


class EngineProvider:
    """What an edge provides at the seam `engine`: engines that are faster than PyTorch's for some models.

    None and an empty text mean that the edge has nothing for this model; then the next edge is asked.
    """

    def engine(self, model: GPT, quantization: Quantization, *, compiled: bool) -> Engine | None:  # noqa: ARG002
        """An engine for the model. `compiled` asks for torch.compile; the model is on CUDA then.

        Raises: ConfigError for a quantization that the edge knows but not for this model.
        """
        return None

    def why_unavailable(self, model: GPT) -> str:  # noqa: ARG002
        """Why this machine cannot use the edge for a model that it is made for, and what to do."""
        return ""


def resolve_engine(model: GPT, quantization: Quantization = "none", *, compiled: bool = False) -> Engine:
    """The fastest engine for a model on its device.

    | model                                                                | engine         | edge   |
    |----------------------------------------------------------------------|----------------|--------|
    | float32 on a CPU with GPT-2's form of GELU, with compiled C code     | `NativeEngine` | native |
    | on CUDA                                                              | `GraphEngine`  | cuda   |
    | any other                                                            | `Engine`       |        |

    `quantization` is that of the weights of `NativeEngine`; "auto" chooses int8 from 50 million parameters on.
    `compiled` compiles the CUDA step with torch.compile, which takes about a minute.

    Raises: ConfigError for int8 if no engine can run the model with it; for `compiled` without CUDA.
    """
    device = model.token_embedding.weight.device
    if compiled and device.type != "cuda":
        raise ConfigError(f"compile (on) needs CUDA, but the model is on {device}; omit it")
    check_quantization(quantization)
    for provider in _providers():
        if (engine := provider.engine(model, quantization, compiled=compiled)) is not None:
            return engine
    if compiled:
        raise ConfigError("compile (on) needs an engine for CUDA that is not installed; omit it")
    check_plain(quantization)
    return Engine(model)


def why_pytorch(model: GPT) -> str:
    """Why PyTorch runs a model that an installed edge is made for, and what to do; else empty."""
    return next(filter(None, (provider.why_unavailable(model) for provider in _providers())), "")


def missing_compiled_code(model: GPT) -> str:
    """A sentence that PyTorch runs a model on a CPU because there is no compiled C code; else empty."""
    reason = why_pytorch(model)
    return f"PyTorch generates the text, several times slower than compiled code: {reason}" if reason else ""


def _providers() -> tuple[EngineProvider, ...]:
    return provided("engine")


def check_quantization(quantization: str) -> None:
    """Raises: ConfigError for a quantization that no engine knows."""
    if quantization not in get_args(Quantization):
        raise ConfigError(f"quantize ({quantization!r}) must be auto, none or int8")


def check_plain(quantization: Quantization) -> None:
    """Raises: ConfigError for weights that are to be quantized, which no installed engine does."""
    if quantization not in ("auto", "none"):
        raise ConfigError(f"quantize ({quantization!r}) needs an engine that is not installed; omit it")
