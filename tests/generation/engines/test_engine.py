"""Every engine gives the same logits however a text is divided into calls and whatever the other rows are."""

from collections.abc import Iterator, Sequence

import pytest
import torch
from builders import by_columns, random_model
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minigpt.cuda import graphs as cuda_graphs
from minigpt.cuda.graphs import GraphEngine
from minigpt.errors import ConfigError
from minigpt.generation.engine import Engine
from minigpt.generation.resolve_engine import resolve_engine
from minigpt.model.gpt import GPT, MLP
from minigpt.model.kv_cache import KVCache
from minigpt.native import compiled, engine_provider
from minigpt.native.engine import NativeEngine

needs_native = pytest.mark.skipif(compiled.library() is None, reason="the C code is not compiled")
every_engine = pytest.mark.parametrize(
    "kind", ["torch", "graph", pytest.param("native", marks=needs_native), pytest.param("int8", marks=needs_native)]
)
some = settings(deadline=None, max_examples=15)


def small_model(n_positions: int = 12, seed: int = 0) -> GPT:
    return random_model(vocab_size=37, n_positions=n_positions, n_embd=18, n_head=3, seed=seed)


def build(kind: str, model: GPT) -> Engine:
    """An engine for a model; PyTorch's run in float64, where the order of operations makes no visible difference."""
    if kind == "torch":
        return Engine(model.double())
    if kind == "graph":
        return GraphEngine(model.double())
    return NativeEngine(by_columns(model), "int8" if kind == "int8" else "none")


def assert_same(kind: str, found: Tensor, expected: Tensor) -> None:
    """Equal to the last bit for decode.c; nearly equal for PyTorch, whose results depend on the batch's shape."""
    if kind in ("torch", "graph"):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    else:
        assert torch.equal(found, expected)


def one_by_one(engine: Engine, ids: Sequence[int]) -> Tensor:
    """The logits after each of one text's ids: (T, V)."""
    first = engine.start([ids[:1]])
    return torch.cat([first, *(engine.read(torch.tensor([[id]]))[0] for id in ids[1:])])


def read_rows(engine: Engine, ids: Sequence[Sequence[int]]) -> Tensor:
    """The next token's logits of every row after it has read its T ids: (B, V)."""
    return engine.read(torch.tensor(ids))[:, -1]


def alone(engine: Engine, *ids: int) -> Tensor:
    return one_by_one(engine, ids)[-1]


@pytest.fixture(autouse=True, scope="module")
def short_spans() -> Iterator[None]:
    """Spans of 2, 4 and 8 cached positions, so that every test's texts need several of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_graphs, "_SHORTEST_SPAN", 2)
        yield


@every_engine
@some
@given(parts=st.lists(st.integers(1, 7), min_size=1, max_size=6), seed=st.integers(0, 2**31))
def test_a_text_gives_the_same_logits_however_it_is_divided_into_calls(kind: str, parts: list[int], seed: int) -> None:
    model = small_model(n_positions=42, seed=seed)
    ids = torch.randint(37, (sum(parts),), generator=torch.Generator().manual_seed(seed))
    engine = build(kind, model)
    every = one_by_one(engine, ids.tolist())
    pieces = ids.split(parts)
    first = engine.start([pieces[0].tolist()])
    found = torch.cat([first, *(engine.read(piece[None])[0] for piece in pieces[1:])])
    assert_same(kind, found, every[parts[0] - 1 :])
    assert engine.length == len(ids)
    if kind != "int8":
        with torch.no_grad():
            whole = model.double()(ids[None])[0]
        torch.testing.assert_close(every.double(), whole, rtol=1e-5, atol=1e-5 * float(whole.abs().max()))


@every_engine
@some
@given(lengths=st.lists(st.integers(1, 10), min_size=1, max_size=5), seed=st.integers(0, 2**31))
def test_rows_of_any_lengths_give_the_logits_of_each_row_alone(kind: str, lengths: list[int], seed: int) -> None:
    engine = build(kind, small_model(seed=seed))
    generator = torch.Generator().manual_seed(seed)
    texts = [torch.randint(37, (length + 2,), generator=generator).tolist() for length in lengths]
    started = engine.start([text[:-2] for text in texts])
    read = engine.read(torch.tensor([text[-2:] for text in texts]))
    assert engine.length == max(lengths) + 2
    for row, text in enumerate(texts):
        every = one_by_one(engine, text)
        assert_same(kind, started[row], every[-3])
        assert_same(kind, read[row], every[-2:])


@every_engine
@pytest.mark.parametrize("order", [[2, 1, 0], [1], [0, 0, 2, 1, 1], [1, 1, 1], [0, 2], [0, 1, 2]], ids=str)
def test_kept_rows_continue_their_own_texts(kind: str, order: list[int]) -> None:
    texts = [[5, 6, 7, 8], [9], [3, 2]]
    engine = build(kind, small_model())
    engine.start(texts)
    engine.keep(order)
    found = read_rows(engine, [[row + 20] for row in range(len(order))])
    again = read_rows(engine, [[30, row] for row in range(len(order))])
    for index, row in enumerate(order):
        assert_same(kind, found[index], alone(engine, *texts[row], index + 20))
        assert_same(kind, again[index], alone(engine, *texts[row], index + 20, 30, index))


@every_engine
def test_nan_in_the_keys_and_values_of_an_earlier_text_does_not_reach_the_next_one(kind: str) -> None:
    model = small_model()
    model.position_embedding.weight.data[7] = torch.nan
    engine = build(kind, model)
    engine.start([[1] * 10])
    found = one_by_one(engine, range(5))  # the last step of recorded ones covers 8 positions
    assert_same(kind, found, one_by_one(build(kind, small_model()), range(5)))


@every_engine
def test_the_padding_of_earlier_texts_does_not_reach_the_next_ones(kind: str) -> None:
    engine = build(kind, small_model())
    engine.start([[1, 2, 3], [4]])
    found = engine.start([[5, 6], [7, 8]])
    assert_same(kind, found[0], alone(engine, 5, 6))
    assert_same(kind, found[1], alone(engine, 7, 8))


@every_engine
def test_rewinding_undoes_reading(kind: str) -> None:
    engine = build(kind, small_model())
    engine.start([[1, 2, 3], [4]])
    engine.read(torch.tensor([[9, 9, 9], [8, 8, 8]]))
    engine.rewind(2)
    assert engine.length == 4
    found = read_rows(engine, [[5], [6]])
    assert_same(kind, found[0], alone(engine, 1, 2, 3, 9, 5))
    assert_same(kind, found[1], alone(engine, 4, 8, 6))


@every_engine
def test_a_short_row_can_use_the_whole_context_after_longer_rows_are_dropped(kind: str) -> None:
    engine = build(kind, small_model(n_positions=12))
    engine.start([[1] * 10, [2, 3], [4]])
    engine.keep([1, 2])
    assert engine.length == 2
    ids = list(range(10, 20))
    found = read_rows(engine, [ids, ids])
    with pytest.raises(ConfigError, match=r"13 positions are more than the model's context length \(12\)"):
        engine.read(torch.tensor([[1], [1]]))
    assert_same(kind, found[0], alone(engine, 2, 3, *ids))
    assert_same(kind, found[1], alone(engine, 4, *ids))


@every_engine
@pytest.mark.parametrize("id", [-1, 37, 2**40])
def test_an_id_outside_the_vocabulary_is_an_error(kind: str, id: int) -> None:
    engine = build(kind, small_model())
    with pytest.raises(IndexError):
        engine.start([[1, id, 2]])
    engine.start([[1]])
    with pytest.raises(IndexError):
        engine.read(torch.tensor([[2, id]]))


@every_engine
def test_a_context_of_one_position_works(kind: str) -> None:
    model = small_model(n_positions=1)
    found = build(kind, model).start([[3], [4]])
    with torch.no_grad():
        expected = model.double()(torch.tensor([[3], [4]]))[:, -1]
    tolerance = 0.1 if kind == "int8" else 1e-5
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=tolerance * float(expected.abs().max()))


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


# Recorded steps, which a CPU runs again at every call.


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # used by torch.compile itself
def test_a_compiled_step_gives_the_same_logits() -> None:
    model = small_model(n_positions=12)
    ids = list(range(3, 15))
    torch.testing.assert_close(
        one_by_one(GraphEngine(model, compiled=True), ids), one_by_one(Engine(model), ids), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("error", [RuntimeError("no C compiler\nand many lines"), torch.OutOfMemoryError("no memory")])
def test_a_failing_compiler_is_an_error_of_one_sentence(error: RuntimeError, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(torch, "compile", lambda *_, **__: broken)
    engine = GraphEngine(small_model(n_positions=12), compiled=True)
    engine.start([[1, 2]])
    ran_out = isinstance(error, torch.OutOfMemoryError)
    expected = "no memory" if ran_out else r"torch\.compile failed \(no C compiler\); generate without --compile"
    with pytest.raises(type(error) if ran_out else ConfigError, match=f"^{expected}$"):
        engine.read(torch.tensor([[3]]))


@pytest.mark.gpu
@pytest.mark.usefixtures("exact_float32")
@pytest.mark.filterwarnings("ignore")  # of torch.compile itself
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.compiles)])
def test_recorded_steps_give_the_logits_of_unrecorded_steps(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if compiled:
        monkeypatch.setattr(cuda_graphs, "_SHORTEST_SPAN", 12)  # a single span to compile
    model = small_model(n_positions=12).to("cuda")
    plain, recorded = Engine(model), GraphEngine(model, compiled=compiled)
    batches = [[[1, 2, 3], [4]], [[5]], [[1, 2], [3, 4], [5]]]
    for texts in batches[: 1 if compiled else 3]:  # a step is compiled for some seconds
        found, expected = recorded.start(texts), plain.start(texts)
        for at in range(6):
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
            ids = torch.tensor([[7 * at + row] for row in range(len(texts))], device="cuda") % 37
            found, expected = recorded.read(ids), plain.read(ids)
        recorded.keep([0])
        plain.keep([0])
        last = torch.tensor([[9]], device="cuda")
        torch.testing.assert_close(recorded.read(last), plain.read(last), rtol=1e-3, atol=1e-3)


@pytest.mark.usefixtures("exact_float32")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.bfloat16, 0.05)])
def test_recorded_steps_of_heads_as_wide_as_gpt2s_give_the_logits_of_unrecorded_steps(
    device: str, dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_graphs, "_SHORTEST_SPAN", 32)
    model = random_model(vocab_size=257, n_positions=64, n_embd=128, n_head=2).to(device, dtype)
    plain, recorded = Engine(model), GraphEngine(model)
    texts = [range(20), range(30, 43)]
    found, expected = recorded.start(texts), plain.start(texts)
    for at in range(20):  # in spans of 32 and 64 positions
        ids = torch.tensor([[7 * at], [7 * at + 1]], device=device)
        found, expected = recorded.read(ids), plain.read(ids)
        scale = float(expected.abs().max())
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.gpu
def test_one_or_two_rows_of_a_plain_model_on_cuda_are_read_by_kernels_in_triton() -> None:
    model = small_model().to("cuda")
    for rows, fits in ((1, True), (2, True), (3, False)):
        cache = KVCache(model.config, rows, device="cuda")
        assert (cuda_graphs.kernel_step(model, cache) is not None) == fits
    model.blocks[0].mlp.up_proj = torch.nn.Sequential(model.blocks[0].mlp.up_proj)  # type: ignore[union-attr,assignment]
    assert cuda_graphs.kernel_step(model, KVCache(model.config, 1, device="cuda")) is None


# The choice of an engine.


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


def test_compiling_the_step_needs_cuda() -> None:
    with pytest.raises(ConfigError, match=r"^compile needs CUDA, but the model is on cpu; omit it$"):
        resolve_engine(small_model(), compiled=True)


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
