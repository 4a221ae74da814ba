"""The engine in C: which models it runs, and the prompts that PyTorch has read."""

from collections.abc import Sequence

import pytest
import torch
from builders import random_model
from torch import Tensor

from minigpt.errors import ConfigError
from minigpt.generation.engine import Engine
from minigpt.generation.resolve_engine import resolve_engine
from minigpt.model.gpt import GPT, MLP
from minigpt.native import compiled, engine_provider
from minigpt.native.engine import NativeEngine

needs_native = pytest.mark.skipif(compiled.library() is None, reason="the C code is not compiled")


def small_model(n_positions: int = 12, seed: int = 0) -> GPT:
    return random_model(vocab_size=37, n_positions=n_positions, n_embd=18, n_head=3, seed=seed)


def read_rows(engine: Engine, ids: Sequence[Sequence[int]]) -> Tensor:
    """The next token's logits of every row after it has read its T ids: (B, V)."""
    return engine.read(torch.tensor(ids))[:, -1]


@needs_native
@pytest.mark.parametrize("first", [1, 16, 17, 30])
def test_decode_c_continues_long_float32_prompts_that_pytorch_has_read(first: int) -> None:
    model = small_model(n_positions=40)
    texts = [[(7 * at + row) % 37 for at in range(40)] for row in range(3)]
    engine = NativeEngine(model)
    started = engine.start([texts[0][:first], texts[1][: first + 5], texts[2][:2]])
    read = read_rows(engine, [texts[0][first : first + 5], texts[1][first + 5 : first + 10], texts[2][2:7]])
    with torch.no_grad():
        whole = model.double()(torch.tensor(texts))  # (3, T, V)
    model.float()
    scale = float(whole.abs().max())
    for row, length in enumerate([first, first + 5, 2]):
        for found, at in ((started, length - 1), (read, length + 4)):
            torch.testing.assert_close(found[row].double(), whole[row, at], rtol=0, atol=1e-5 * scale)
        own = engine.start([texts[row][:length]])[0]
        torch.testing.assert_close(started[row], own, rtol=0, atol=0)


@needs_native
def test_decode_c_runs_float32_on_a_cpu_and_pytorch_every_other_dtype() -> None:
    assert isinstance(resolve_engine(small_model()), NativeEngine)
    for dtype in (torch.float64, torch.bfloat16):
        assert type(resolve_engine(small_model().to(dtype))) is Engine


@needs_native
def test_auto_chooses_int8_for_large_models_that_decode_c_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "float32" in resolve_engine(small_model(), "auto").description
    monkeypatch.setattr(engine_provider, "_INT8_FROM", 1000)
    assert "int8" in resolve_engine(small_model(), "auto").description
    assert type(resolve_engine(small_model().to(torch.bfloat16), "auto")) is Engine


def test_pytorch_runs_every_model_if_decode_c_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_library", lambda: "there is no compiler")
    engine = resolve_engine(small_model())
    assert type(engine) is Engine
    assert engine.description == "cpu, float32, PyTorch"
    with pytest.raises(ConfigError) as caught:
        resolve_engine(small_model(), "int8")
    assert str(caught.value) == (
        "quantize ('int8') needs float32 weights on a CPU and the compiled decode step; there is no compiler"
    )


@needs_native
def test_int8_needs_the_tanh_form_of_gelu() -> None:
    model = random_model(activation_function="gelu")
    assert type(resolve_engine(model)) is Engine
    with pytest.raises(ConfigError, match=r"the model has another activation function \(gelu\)$"):
        resolve_engine(model, "int8")


class Halved(torch.nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / 2


class SubclassedGPT(GPT):
    pass


@needs_native
@pytest.mark.parametrize("change", ["code", "broken code", "module", "class"])
def test_pytorch_runs_a_model_that_computes_something_else(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(resolve_engine(small_model()), NativeEngine)
    model = small_model()
    engine_provider._modules_of_decode_c.cache_clear()
    if change == "code":
        monkeypatch.setattr(MLP, "forward", lambda self, x: self.down_proj(torch.relu(self.up_proj(x))))
    elif change == "broken code":
        monkeypatch.setattr(MLP, "forward", lambda self, x: x.view(7, 7))
    elif change == "module":
        model.blocks[1].mlp.up_proj.__class__ = Halved
    else:
        model.__class__ = SubclassedGPT
    try:
        assert type(resolve_engine(model)) is Engine
        with pytest.raises(ConfigError, match=r"decode\.c computes something else than the model's forward pass$"):
            resolve_engine(model, "int8")
    finally:
        engine_provider._modules_of_decode_c.cache_clear()


@needs_native
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_int8_needs_float32_weights_on_a_cpu(device: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_engine(small_model().to(device, torch.bfloat16), "int8")
    assert str(caught.value) == (
        "quantize ('int8') needs float32 weights on a CPU and the compiled decode step; the weights are bfloat16 on "
        + device
    )
