"""What edges provide for generation: engines and draws; and what there is without them."""

from collections.abc import Sequence

import pytest
import torch
from builders import new_model
from torch import Tensor

from minigpt.config import SamplingConfig
from minigpt.errors import ConfigError
from minigpt.generation import resolve_engine as resolving
from minigpt.generation import sampling
from minigpt.generation.engine import Engine
from minigpt.generation.engine_settings import Quantization
from minigpt.generation.resolve_engine import EngineProvider, resolve_engine, why_pytorch
from minigpt.generation.sampling import Sampler
from minigpt.model.gpt import GPT


class OwnEngine(Engine):
    pass


class Narrow(EngineProvider):
    """Runs models of one layer."""

    def engine(self, model: GPT, quantization: Quantization, *, compiled: bool) -> Engine | None:
        return OwnEngine(model) if model.config.n_layer == 1 else None

    def why_unavailable(self, model: GPT) -> str:
        return "" if model.config.n_layer == 1 else "it has too many layers"


def test_the_first_edge_that_has_an_engine_for_a_model_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolving, "provided", lambda _: (EngineProvider(), Narrow()))
    narrow, deep = new_model(n_layer=1), new_model(n_layer=2)
    assert type(resolve_engine(narrow)) is OwnEngine
    assert type(resolve_engine(deep)) is Engine
    assert (why_pytorch(narrow), why_pytorch(deep)) == ("", "it has too many layers")


def test_without_edges_pytorch_runs_every_model_and_quantizes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolving, "provided", lambda _: ())
    for quantization in ("auto", "none"):
        assert type(resolve_engine(new_model(), quantization)) is Engine  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^quantize \('int8'\) needs an engine that is not installed; omit it$"):
        resolve_engine(new_model(), "int8")
    with pytest.raises(ConfigError, match=r"^quantize \('int4'\) must be auto, none or int8$"):
        resolve_engine(new_model(), "int4")  # type: ignore[arg-type]
    assert why_pytorch(new_model()) == ""


def test_an_edge_may_draw_tokens_and_leave_some_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    def draw(logits: Tensor, numbers: Sequence[float], *_: object) -> Tensor | None:
        return torch.full((len(numbers),), 3) if len(logits) == 1 else None

    monkeypatch.setattr(sampling, "provided", lambda _: (draw,))
    sampler, history = Sampler(SamplingConfig(seed=1, top_k=1)), torch.zeros(2, 0, dtype=torch.int64)
    logits = torch.tensor([[0.0, 9.0, 0.0, 0.0], [9.0, 0.0, 0.0, 0.0]])
    assert sampler.choose(logits[:1], history, 0).tolist() == [3]
    assert sampler.choose(logits, history, 0).tolist() == [1, 0]


def test_compiling_the_step_needs_cuda() -> None:
    with pytest.raises(ConfigError, match=r"^compile \(on\) needs CUDA, but the model is on cpu; omit it$"):
        resolve_engine(new_model(), compiled=True)
