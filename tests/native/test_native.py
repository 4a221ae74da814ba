"""decode.c gives the logits of PyTorch in float64, for every weight format and every instruction set."""

import contextlib
import errno
import math
import re
import shutil
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from builders import by_columns
from torch import Tensor

from minigpt.config import PRESETS, GPTConfig
from minigpt.generation.resolve_engine import resolve_engine
from minigpt.model.gpt import GPT
from minigpt.native import compiled, engine_provider
from minigpt.native import engine as native
from minigpt.native.engine import NativeEngine

needs_native = pytest.mark.skipif(compiled.library() is None, reason="the C code is not compiled")
Use = Callable[[str], None]
FOLDER = Path(compiled.__file__).parent

# Difficult shapes: widths that are not multiples of 4, 16 or 64, vocabularies that are not multiples of 16, and size 1.
SHAPES = [
    GPTConfig(vocab_size=37, n_positions=40, n_embd=51, n_layer=2, n_head=3),
    GPTConfig(vocab_size=1, n_positions=2, n_embd=1, n_layer=1, n_head=1),
    GPTConfig(vocab_size=17, n_positions=20, n_embd=16, n_layer=2, n_head=16),
    GPTConfig(vocab_size=101, n_positions=33, n_embd=66, n_layer=1, n_head=11, layer_norm_epsilon=1e-2),
    GPTConfig(vocab_size=257, n_positions=140, n_embd=130, n_layer=2, n_head=2),
    GPTConfig(vocab_size=33, n_positions=150, n_embd=128, n_layer=2, n_head=2),  # GPT-2's head width
    GPTConfig(vocab_size=33, n_positions=70, n_embd=96, n_layer=2, n_head=2),
]
every_shape = pytest.mark.parametrize("config", SHAPES, ids=lambda config: f"{config.n_embd}x{config.n_head}")


SETS = compiled.instruction_sets(loaded) if (loaded := compiled.library()) else []
every_set = pytest.mark.parametrize("instructions", SETS)


def scaled_model(config: GPTConfig, seed: int = 0) -> GPT:
    """A model whose random weights are scaled by their fan-in, so that float32 stays close to float64 at any width."""
    generator = torch.Generator().manual_seed(seed)
    model = GPT(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1:
                parameter.copy_(0.3 * noise + name.endswith("norm.weight"))
            else:
                parameter.copy_(noise * (1 if "embedding" in name else 1.5 / math.sqrt(parameter.shape[1])))
    return model


def some_ids(config: GPTConfig, count: int | None = None, seed: int = 1) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(config.vocab_size, (count or config.n_positions,), generator=generator).tolist()


def logits(engine: NativeEngine, ids: list[int]) -> Tensor:
    """The logits after every id, all computed by decode.c: (T, V)."""
    first = engine.start([ids[:1]])
    return torch.cat([first, engine.read(torch.tensor([ids[1:]]))[0]]) if len(ids) > 1 else first


@torch.no_grad()
def exact(model: GPT, ids: list[int]) -> Tensor:
    found = model.double()(torch.tensor([ids]))[0]
    model.float()
    return found


def assert_near(found: Tensor, expected: Tensor, tolerance: float) -> None:
    """Equal to within `tolerance` times the largest expected value."""
    torch.testing.assert_close(found.double(), expected.double(), rtol=0, atol=tolerance * float(expected.abs().max()))


# float32


@needs_native
@every_set
@every_shape
@pytest.mark.parametrize("columns", [False, True], ids=["rows", "columns"])
def test_float32_logits_are_those_of_pytorch(use: Use, instructions: str, config: GPTConfig, columns: bool) -> None:
    use(instructions)
    model, ids = scaled_model(config), some_ids(config)
    expected = exact(model, ids)
    found = logits(NativeEngine(by_columns(model) if columns else model), ids)
    assert_near(found, expected, 2e-6)


@needs_native
@pytest.mark.parametrize("length", range(512, 525))
def test_the_first_rows_that_are_computed_at_once_may_have_no_logits(length: int) -> None:
    model = scaled_model(GPTConfig(vocab_size=37, n_positions=600, n_embd=48, n_layer=2, n_head=3))
    ids, engine = some_ids(model.config, length), NativeEngine(model, "int8")
    expected = logits(engine, ids)[-1]
    assert torch.equal(engine.start([ids])[0], expected)


@needs_native
@pytest.mark.parametrize("quantization", ["none", "int8"])
@pytest.mark.parametrize(
    "name",
    [
        *(name for name in PRESETS if name not in ("gpt2-large", "gpt2-xl")),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("gpt2-large", "gpt2-xl")),
    ],
)
def test_a_layer_of_every_preset_gives_the_logits_of_pytorch(name: str, quantization: str) -> None:
    config = PRESETS[name].replace(n_layer=1, vocab_size=301)
    model, ids = by_columns(scaled_model(config)), some_ids(config, 24)
    expected = exact(model, ids)
    found = logits(NativeEngine(model, quantization), ids)
    assert_near(found, expected, 3e-6 if quantization == "none" else 0.03)


@needs_native
@pytest.mark.slow
@pytest.mark.parametrize("columns", [False, True], ids=["rows", "columns"])
def test_gpt2_gives_the_logits_of_pytorch_up_to_the_end_of_its_context(columns: bool) -> None:
    model = GPT(PRESETS["gpt2"]).eval()
    ids = some_ids(model.config)
    with torch.no_grad():
        expected = model(torch.tensor([ids]))[0, 1000:]
    engine = NativeEngine(by_columns(model) if columns else model)
    engine.start([ids[:1000]])
    found = engine.read(torch.tensor([ids[1000:]]))[0]
    assert_near(found, expected, 1e-5)


@needs_native
@every_set
@every_shape
@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_logits_do_not_depend_on_the_number_of_ids_in_a_call_or_of_threads(
    use: Use, instructions: str, config: GPTConfig, quantization: str
) -> None:
    use(instructions)
    engine = NativeEngine(by_columns(scaled_model(config)), quantization)
    ids = some_ids(config)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        together = logits(engine, ids)
        apart = torch.cat([engine.start([ids[:1]]), *(engine.read(torch.tensor([[id]]))[0] for id in ids[1:])])
        torch.set_num_threads(3)
        shared = logits(engine, ids)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(together, apart)
    assert torch.equal(together, shared)


@needs_native
def test_float32_weights_are_used_in_place() -> None:
    model, ids = by_columns(scaled_model(SHAPES[0])), [1, 2, 3]
    engine = NativeEngine(model)
    before = engine.start([ids])
    model.get_parameter("blocks.1.mlp.up_proj.weight").data.mul_(1.5)
    model.get_parameter("final_norm.bias").data.add_(1)
    after = engine.start([ids])
    assert not torch.equal(before, after)
    assert_near(after[0], exact(model, ids)[-1], 2e-6)


def logits_of_two_texts(model: GPT, quantization: str, ids: list[int]) -> Tensor:
    """The logits after a long and a short prompt, then after each of two more ids: (6, V)."""
    engine = NativeEngine(model, quantization)
    started = engine.start([ids[:30], ids[:5]])
    return torch.cat([started, engine.read(torch.tensor([ids[30:32], ids[32:34]], device="cpu")).flatten(0, 1)])


@needs_native
@pytest.mark.parametrize("quantization", ["none", "int8"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_default_dtype_of_torch_has_no_effect(quantization: str, dtype: torch.dtype) -> None:
    model, ids, default = scaled_model(SHAPES[0]), some_ids(SHAPES[0]), torch.get_default_dtype()
    expected = logits_of_two_texts(model, quantization, ids)
    torch.set_default_dtype(dtype)
    try:
        found = logits_of_two_texts(model, quantization, ids)
    finally:
        torch.set_default_dtype(default)
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)


@needs_native
@pytest.mark.parametrize("context", ["default dtype", "default device", "autocast"])
def test_the_choice_of_the_engine_does_not_depend_on_the_settings_of_torch(context: str) -> None:
    model, default = scaled_model(SHAPES[0]), torch.get_default_dtype()
    engine_provider._modules_of_decode_c.cache_clear()
    contexts: dict[str, contextlib.AbstractContextManager[Any]] = {
        "default device": torch.device("meta"),
        "autocast": torch.autocast("cpu", torch.bfloat16),
    }
    try:
        torch.set_default_dtype(torch.float64 if context == "default dtype" else default)
        with contexts.get(context, contextlib.nullcontext()):
            assert isinstance(resolve_engine(model), NativeEngine)
    finally:
        torch.set_default_dtype(default)
        engine_provider._modules_of_decode_c.cache_clear()


# int8


@needs_native
@pytest.mark.skipif(sys.platform != "linux", reason="only on Linux the memory for int8 weights is mapped")
def test_memory_that_the_system_refuses_is_a_memory_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(native, "mmap", SimpleNamespace(mmap=refuse, MAP_PRIVATE=2, MAP_ANONYMOUS=32))
    with pytest.raises(MemoryError, match=r"^out of memory for [\d,]+ bytes of int8 weights$"):
        NativeEngine(scaled_model(SHAPES[0]), "int8")


def to_127(x: Tensor) -> tuple[Tensor, Tensor]:
    """The numbers scaled to -127 to 127, and their scale: (..., K) -> (..., K), (..., 1)."""
    largest = x.abs().amax(dim=-1, keepdim=True)
    return torch.where(largest > 0, x * 127 / largest, 0.0), largest / 127


def int8_linear(x: Tensor, weight: Tensor, bias: Tensor | None, margins: list[float]) -> Tensor:
    """x W^T + bias in float64, with int8 weights (a scale per output) and int8 inputs (a scale per 64).

    Appends the smallest distance of an input from the middle between two integers, where its rounding changes.
    """
    integers, scale = to_127(weight)
    integers, padding = integers.round(), (0, -x.shape[-1] % 64)
    scaled, scales = to_127(F.pad(x, padding).unflatten(-1, (-1, 64)))  # (T, blocks, 64), (T, blocks, 1)
    margins.append(float((scaled - scaled.floor() - 0.5).abs().min()))
    inputs = scaled.round()
    products = torch.einsum("tbk,obk->tbo", inputs, F.pad(integers, padding).unflatten(-1, (-1, 64)))
    y = (products * scales).sum(dim=1) * scale.squeeze(-1)
    return y if bias is None else y + bias


@torch.no_grad()
def int8_oracle(model: GPT, ids: list[int], margins: list[float] | None = None) -> Tensor:
    """The definition of int8 inference: the logits after every id, (T, V). Appends the margins of `int8_linear`."""
    margins = [] if margins is None else margins
    config, state = model.config, {name: value.double() for name, value in model.state_dict().items()}
    shape, mask = (len(ids), 3, config.n_head, config.head_width), torch.ones(len(ids), len(ids)).tril() == 1

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"], config.layer_norm_epsilon)

    def linear(x: Tensor, name: str) -> Tensor:
        return int8_linear(x, state[f"{name}.weight"], state[f"{name}.bias"], margins)

    integers, scale = to_127(state["token_embedding.weight"][ids])
    x = integers.round() * scale + state["position_embedding.weight"][: len(ids)]
    for block in (f"blocks.{layer}" for layer in range(config.n_layer)):
        qkv = linear(norm(x, f"{block}.attention_norm"), f"{block}.attention.qkv_proj").view(shape)
        q, k, v = qkv.permute(1, 2, 0, 3)  # 3 x (H, T, D)
        weights = (q @ k.mT / math.sqrt(config.head_width)).masked_fill(~mask, -math.inf).softmax(-1)
        x = x + linear((weights @ v).transpose(0, 1).flatten(1), f"{block}.attention.out_proj")
        hidden = F.gelu(linear(norm(x, f"{block}.mlp_norm"), f"{block}.mlp.up_proj"), approximate="tanh")
        x = x + linear(hidden, f"{block}.mlp.down_proj")
    return int8_linear(norm(x, "final_norm"), state["token_embedding.weight"], None, margins)


def snap_weights(model: GPT) -> GPT:
    """The same model with matrices that int8 holds exactly: each row is integers up to 127 times a power of two."""
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2 and name != "position_embedding.weight":
            rows = parameter.data
            largest = rows.abs().amax(dim=-1, keepdim=True)
            scale = torch.exp2(torch.ceil(torch.log2(largest / 127)))
            integers = torch.where(rows.abs() == largest, 127 * rows.sign(), (rows / scale).round())
            parameter.data = integers * scale
    return model


@cache
def int8_case(config: GPTConfig) -> tuple[int, list[int], Tensor]:
    """The seed of a model, ids, and the logits of int8 inference; every processor rounds to the same integers.

    An activation that float32 rounds to another integer than float64 changes all later ones. So the first seed is taken
    for which every activation, scaled to 127, is 1e-4 from the middle of two integers: 13 unit roundoffs of 127.
    """
    ids = some_ids(config, min(config.n_positions, 6))
    for seed in range(500):
        margins: list[float] = []
        expected = int8_oracle(snap_weights(scaled_model(config, seed)), ids, margins)
        if min(margins) > 1e-4:
            return seed, ids, expected
    raise AssertionError("no seed has margins as wide")


@needs_native
@every_set
@every_shape
@pytest.mark.parametrize("columns", [False, True], ids=["rows", "columns"])
def test_int8_logits_are_those_of_the_definition(use: Use, instructions: str, config: GPTConfig, columns: bool) -> None:
    use(instructions)
    seed, ids, expected = int8_case(config)
    model = snap_weights(scaled_model(config, seed))
    found = logits(NativeEngine(by_columns(model) if columns else model, "int8"), ids)
    assert_near(found, expected, 1e-5)


@needs_native
@every_set
def test_int8_handles_outputs_and_inputs_of_any_magnitude(use: Use, instructions: str) -> None:
    use(instructions)
    config = SHAPES[0]
    model, ids = scaled_model(config), [3, 4, 5]
    head = model.token_embedding.weight.data
    head[10] = 0
    head[11] *= 1e30
    head[12] *= 1e-30
    head[13] *= 1e-42  # subnormal, so float32 has fewer digits
    head[14, 1:] = 0
    model.get_parameter("blocks.0.mlp.up_proj.weight").data.zero_()
    # GELU(0) is 0, so the matrix after these zeros gets zeros as inputs.
    model.get_parameter("blocks.0.mlp.up_proj.bias").data.zero_()
    model.get_parameter("blocks.1.mlp.down_proj.weight").data[5] = 0
    model.get_parameter("blocks.1.mlp_norm.weight").data.mul_(1e-38)
    model.get_parameter("blocks.1.mlp_norm.bias").data.zero_()
    expected = int8_oracle(model, ids)[-1]
    found = logits(NativeEngine(model, "int8"), ids)[-1]
    ordinary = [token for token in range(config.vocab_size) if token not in (11, 12, 13)]
    assert_near(found[ordinary], expected[ordinary], 1e-4)
    assert found[10] == 0
    assert abs(float(found[13])) < 1e-40
    assert float(found[11]) == pytest.approx(float(expected[11]), rel=1e-4, abs=0)
    assert float(found[12]) == pytest.approx(float(expected[12]), rel=1e-4, abs=0)


@needs_native
@every_set
@pytest.mark.parametrize("quantization", ["none", "int8"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("token_embedding.weight", (3, 7)),
        ("position_embedding.weight", (0, 50)),
        ("blocks.0.attention_norm.weight", (1,)),
        ("blocks.0.attention.qkv_proj.weight", (0, 20)),
        ("blocks.0.attention.qkv_proj.bias", (51,)),
        ("blocks.0.attention.qkv_proj.bias", (152,)),
        ("blocks.1.attention.out_proj.weight", (50, 0)),
        ("blocks.1.mlp.up_proj.weight", (203, 49)),
        ("blocks.1.mlp.down_proj.weight", (0, 203)),
        ("final_norm.bias", (0,)),
    ],
)
def test_a_nan_or_infinite_weight_makes_the_logits_nan_or_infinite(
    use: Use, instructions: str, quantization: str, value: float, name: str, index: tuple[int, ...]
) -> None:
    use(instructions)
    model = scaled_model(SHAPES[0])
    model.get_parameter(name).data[index] = value
    found = logits(NativeEngine(model, quantization), [3, 4])
    if math.isnan(value):
        assert found.isnan().all(dim=-1)[0 if "position" in name or "token" in name else 1]
    else:
        # An infinite query or key may only saturate the softmax.
        assert not found.isfinite().all() or "qkv_proj" in name


def language(count: int) -> Tensor:
    """Tokens of an invented language: 3 of 40 may follow, depending on the last two tokens: (N,)."""
    generator = torch.Generator().manual_seed(3)
    follow = torch.randint(40, (40, 2, 3), generator=generator).tolist()
    draws, ids = torch.randint(3, (count,), generator=generator).tolist(), [0, 0]
    for draw in draws:
        ids.append(follow[ids[-1]][ids[-2] % 2][draw])
    return torch.tensor(ids)


@needs_native
def test_int8_hardly_changes_the_distribution_of_a_trained_model() -> None:
    torch.manual_seed(0)
    model, data = GPT(GPTConfig(vocab_size=40, n_positions=32, n_embd=48, n_layer=2, n_head=4)), language(4000)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(110):
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * min(1, step / 10) * (1 - step / 110)
        rows = data[torch.randint(2000, (16, 1)) + torch.arange(33)]  # (B, T + 1)
        loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 1.8  # from log 40 = 3.7 nats down to log 3 = 1.1 at best
    model.eval()
    engine, divergence, losses = NativeEngine(model, "int8"), 0.0, [0.0, 0.0]
    starts = range(2100, 2900, 32)
    for start in starts:
        ids, targets = data[start : start + 32], data[start + 1 : start + 33]
        ours = logits(engine, ids.tolist()).double().log_softmax(-1)
        theirs = exact(model, ids.tolist()).log_softmax(-1)
        divergence += float(F.kl_div(ours, theirs, log_target=True, reduction="batchmean")) / len(starts)
        for index, found in enumerate((ours, theirs)):
            losses[index] += float(F.nll_loss(found, targets)) / len(starts)
    assert 0 < divergence < 0.005
    assert math.exp(losses[0] - losses[1]) == pytest.approx(1, abs=0.01)


# The library


@needs_native
@pytest.mark.parametrize(("chosen", "used"), [("plain", "plain"), ("", SETS[:1] and SETS[0])])
def test_the_environment_chooses_the_instruction_set(
    use: Use, monkeypatch: pytest.MonkeyPatch, chosen: str, used: str
) -> None:
    monkeypatch.setattr(compiled, "_library", compiled._library.__wrapped__)
    monkeypatch.setenv("MINIGPT_CPU_ISA", chosen)
    assert NativeEngine(scaled_model(SHAPES[1])).description == f"cpu, float32, compiled for {used}"


@pytest.mark.parametrize("record", ["", "[1]", "no JSON", '{"error": ""}'])
def test_the_library_is_unavailable_without_a_compiled_file(
    record: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "_native_build.json").write_text(record)
    monkeypatch.setattr(compiled, "__file__", str(tmp_path / "compiled.py"))
    monkeypatch.setattr(compiled, "_library", compiled._library.__wrapped__)
    assert compiled.library() is None
    assert compiled.uses_one_core() == ""
    assert compiled.why_unavailable() == "the C code is not compiled; install gcc or clang, then reinstall minigpt"


@needs_native
def test_the_library_is_unavailable_if_its_sources_have_changed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert compiled.why_unavailable() == ""
    for path in (FOLDER / "compiled.py", *FOLDER.glob("*.[ch]"), *FOLDER.glob("_native*")):
        shutil.copy(path, tmp_path)
    monkeypatch.setattr(compiled, "_library", compiled._library.__wrapped__)
    monkeypatch.setattr(compiled, "__file__", str(tmp_path / "compiled.py"))
    assert compiled.library() is not None
    with (tmp_path / "kernels.h").open("a") as header:
        header.write("\n")
    assert compiled.library() is None
    assert compiled.why_unavailable() == "the C code has changed since it was compiled; reinstall minigpt"


@needs_native
def test_the_library_is_unavailable_without_openmp(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def refuse(path: str, *_: object) -> None:
        tried.append(path)
        raise OSError("undefined symbol: GOMP_parallel")

    monkeypatch.setattr(compiled.ctypes, "CDLL", refuse)
    monkeypatch.setattr(compiled, "_library", compiled._library.__wrapped__)
    assert compiled.library() is None
    assert compiled.why_unavailable() == (
        f"{compiled._LIBRARY} cannot be loaded (undefined symbol: GOMP_parallel); reinstall minigpt here, or install "
        "libgomp or libomp"
    )
    assert any("libgomp" in path for path in tried)


def test_a_library_of_another_machine_is_not_said_to_need_openmp(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / compiled._LIBRARY).write_bytes(b"no library")
    monkeypatch.setattr(compiled, "__file__", str(tmp_path / "compiled.py"))
    monkeypatch.setattr(compiled, "_library", compiled._library.__wrapped__)
    reason = compiled.why_unavailable()
    assert re.match(r"_native\.\w+ cannot be loaded \(.+\); reinstall minigpt here, ", reason)
    assert "GOMP" not in reason
    assert str(tmp_path) not in reason


@pytest.mark.parametrize("bundled", [["libgomp.so.1"], ["libomp.dylib"], []])
def test_pytorchs_openmp_is_loaded_if_it_is_not_visible_else_gccs(
    bundled: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "lib").mkdir()
    for name in [*bundled, "libtorch.so"]:
        (tmp_path / "lib" / name).touch()
    loaded: list[str] = []

    def load(path: str, *_: object) -> str:
        if path == "decode" and not loaded:
            raise OSError("undefined symbol: GOMP_parallel")
        loaded.append(path)
        return path

    monkeypatch.setattr(compiled.torch, "__file__", str(tmp_path / "__init__.py"))
    monkeypatch.setattr(compiled.ctypes, "CDLL", load)
    assert compiled._load("decode") == "decode"
    expected = [str(tmp_path / "lib" / name) for name in bundled] or ["libgomp.so.1"]
    assert loaded == [*expected, "decode"]
