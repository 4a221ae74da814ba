"""Recorded steps, which a CPU runs again at every call, against the steps of PyTorch."""

from collections.abc import Iterator, Sequence

import pytest
import torch
from builders import random_model
from engines import short_spans
from torch import Tensor

from minigpt.cuda import graphs as cuda_graphs
from minigpt.cuda.graphs import GraphEngine
from minigpt.errors import ConfigError
from minigpt.generation.engine import Engine
from minigpt.model.gpt import GPT
from minigpt.model.kv_cache import KVCache


def small_model(n_positions: int = 12, seed: int = 0) -> GPT:
    return random_model(vocab_size=37, n_positions=n_positions, n_embd=18, n_head=3, seed=seed)


def one_by_one(engine: Engine, ids: Sequence[int]) -> Tensor:
    """The logits after each of one text's ids: (T, V)."""
    first = engine.start([ids[:1]])
    return torch.cat([first, *(engine.read(torch.tensor([[id]]))[0] for id in ids[1:])])


@pytest.fixture(autouse=True, scope="module")
def _short_spans() -> Iterator[None]:
    with short_spans():
        yield


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
