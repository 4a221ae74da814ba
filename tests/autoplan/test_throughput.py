"""The peak arithmetic of a device, and measuring a step without side effects."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from minigpt.autoplan import throughput
from minigpt.autoplan.memory_estimates import state_bytes
from minigpt.autoplan.throughput import Peak, peak, seconds_per_step, timed_step
from minigpt.config import PRESETS, GPTConfig, TrainConfig
from minigpt.errors import TrainingError
from minigpt.model.gpt import GPT
from minigpt.training.step import TrainStep
from minigpt.training.step_parts import build_step_parts


class RandomTokens:
    """A text to train on."""

    def __init__(self) -> None:
        self.rows: set[int] = set()  # in each batch

    def batch(self, _step: int, _size: int, length: int, _seed: int, rows: range, *_: object) -> object:
        self.rows.add(len(rows))
        return torch.randint(TINY.vocab_size, (2, len(rows), length)).unbind()

    def scores_all(self, _: str) -> bool:
        return True


TEXT: Any = RandomTokens()
CPU, CUDA = torch.device("cpu"), torch.device("cuda")
TINY = GPTConfig(vocab_size=50, n_positions=8, n_embd=8, n_layer=1, n_head=2)


@pytest.fixture
def unmeasured() -> Iterator[None]:
    """Clears the cache of peaks before the test and after it."""
    peak.cache_clear()
    yield
    peak.cache_clear()


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize(
    ("name", "teraflops"),
    [
        ("NVIDIA H200", 989),
        ("NVIDIA H200 NVL", 835),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A40", 150),
        ("NVIDIA L4", 121),
        ("NVIDIA L40S", 362),
        ("NVIDIA GeForce RTX 4090", 165),
        ("NVIDIA L40", None),
        ("NVIDIA RTX A4000", None),
        ("NVIDIA RTX A1000", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
    ],
)
def test_a_known_gpu_has_the_peak_of_its_data_sheet_and_others_are_measured(
    monkeypatch: pytest.MonkeyPatch, name: str, teraflops: int | None
) -> None:
    monkeypatch.setattr(throughput, "_matmul_flops", lambda *_: 7e12)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    found = peak(CUDA, torch.bfloat16)
    assert found.flops == (teraflops or 7) * 1e12
    assert ("data sheet" in found.source) == (teraflops is not None)


@pytest.mark.usefixtures("unmeasured")
def test_the_peak_of_a_cpu_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = peak(CPU, torch.float32)
    assert first.flops > 1e8
    monkeypatch.setattr(throughput, "_matmul_flops", lambda *_: 1.0)
    assert peak(CPU, torch.float32) is first


@pytest.mark.parametrize(("seconds", "products"), [(0.01, 8), (0.3, 4), (5.0, 2)])
def test_few_products_are_measured_where_each_takes_long(
    monkeypatch: pytest.MonkeyPatch, seconds: float, products: int
) -> None:
    """As in bfloat16 on a CPU without its instructions."""
    reads = []

    def perf_counter() -> float:
        reads.append(seconds * len(reads))
        return reads[-1]

    monkeypatch.setattr(throughput, "time", SimpleNamespace(perf_counter=perf_counter))
    assert throughput._matmul_flops(CPU, torch.float32) == pytest.approx(2 * 1024**3 / seconds)
    assert len(reads) == 2 * products


def test_measuring_keeps_no_reference_to_the_model() -> None:
    code = """if True:
        import gc, sys, weakref
        sys.path.append(sys.argv[1])
        from test_throughput import CPU, TEXT, TINY, TrainConfig, throughput

        class Watched(throughput.TrainStep):
            def __init__(self, *rest):
                super().__init__(*rest)
                made.append(weakref.ref(self))

        gc.disable()  # it would run at an arbitrary time
        made, throughput.TrainStep = [], Watched
        throughput.seconds_per_step(TINY, TrainConfig(steps=1, context_length=8), CPU, TEXT, seconds=0.01)
        assert made[0]() is None
    """
    # In a separate process: only the first optimizer imports the modules that keep references.
    subprocess.run([sys.executable, "-c", code, str(Path(__file__).parent)], check=True)


def test_measuring_a_step_keeps_the_random_state() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    config = TrainConfig(steps=1, context_length=8, batch_size=4)
    assert seconds_per_step(TINY, config, CPU, TEXT, seconds=0.01) > 0
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("processes", "rows"), [(1, 6), (2, 3), (8, 1)])
def test_one_of_several_processes_is_measured_with_its_share_of_the_batch(processes: int, rows: int) -> None:
    text: Any = RandomTokens()
    config = TrainConfig(steps=1, context_length=8, batch_size=6)
    seconds_per_step(TINY, config, CPU, text, processes=processes, seconds=0.01)
    assert text.rows == {rows}


def test_a_slow_step_is_measured_on_a_smaller_model_and_batch() -> None:
    config = TrainConfig(steps=1, context_length=1024, batch_size=8)
    small, less, scale = throughput._affordable(PRESETS["gpt2-xl"], config, 1e11, sys.maxsize, on_cpu=True)
    assert (small.n_layer, less.batch_size) == (1, 1)
    assert less.context_length is not None
    assert small.n_positions == less.context_length  # whose causal mask is smaller
    work = small.flops_per_token(less.context_length) * less.context_length
    assert work == pytest.approx(1e11, rel=0.1)
    assert scale == pytest.approx(PRESETS["gpt2-xl"].flops_per_token(1024) * 8 * 1024 / work)
    assert throughput._affordable(TINY, config.replace(context_length=8), 1e11, sys.maxsize, on_cpu=True) == (
        TINY, config.replace(context_length=8), 1.0
    )  # fmt: skip


def test_a_model_too_large_for_the_memory_is_measured_with_the_layers_that_fit() -> None:
    model, config = PRESETS["gpt2-xl"], TrainConfig(steps=1, context_length=64, batch_size=1, optimizer="adamw")
    small, less, scale = throughput._affordable(model, config, 1e18, 8 * 10**9, on_cpu=False)
    assert less == config
    assert state_bytes(small, "adamw") < 8 * 10**9 < state_bytes(small.replace(n_layer=small.n_layer + 2), "adamw")
    assert scale == model.flops_per_token(64) / small.flops_per_token(64)


def test_the_time_of_the_gradients_scales_with_arithmetic_and_that_of_the_update_with_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, config = TINY.replace(n_layer=6), TrainConfig(steps=1, context_length=8, batch_size=16)
    flops = model.flops_per_token(8) * 8 * 16
    monkeypatch.setattr(throughput, "timed_step", lambda *_: (0.7, 0.5))
    for share, layers in ((1, 6), (4, 6), (64, 1)):  # only this share of the step is affordable
        monkeypatch.setattr(throughput, "peak", lambda *_, share=share: Peak(flops / share / 0.8, "made up"))
        small, _, scale = throughput._affordable(model, config, flops / share, sys.maxsize, on_cpu=True)
        assert small.n_layer == layers
        assert (scale > 1) == (share > 1)
        expected = scale * 0.7 + 6 / layers * 0.5
        assert seconds_per_step(model, config, CPU, TEXT) == pytest.approx(expected)


def test_the_time_is_the_median_of_the_steps_after_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    took = iter([(0.3, 0.1), (0.3, 0.03), (0.1, 0.02), (0.2, 0.05)])
    monkeypatch.setattr(throughput, "timed_step", lambda *_: next(took))
    monkeypatch.setattr(throughput, "peak", lambda *_: Peak(1e18, "made up"))
    config = TrainConfig(steps=1, context_length=8, batch_size=4)
    assert seconds_per_step(TINY, config, CPU, TEXT, seconds=1.0) == pytest.approx(0.2 + 0.03)


@pytest.mark.parametrize("ours", [True, False])
def test_running_out_of_memory_while_measuring_is_one_sentence(monkeypatch: pytest.MonkeyPatch, ours: bool) -> None:
    def runs_out(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory") if ours else RuntimeError("a bug")

    monkeypatch.setattr(throughput, "timed_step", runs_out)
    config = TrainConfig(steps=1, context_length=8, batch_size=4)
    message = r"width 8 \(n_embd\) needs more memory than cpu has, .* shorter --context-length" if ours else "^a bug$"
    with pytest.raises(TrainingError if ours else RuntimeError, match=message):
        seconds_per_step(TINY, config, CPU, TEXT)


def test_a_timed_step_times_gradients_and_update_separately_and_changes_no_weight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, config = GPT(TINY), TrainConfig(steps=1, context_length=8, batch_size=4)
    train_step = TrainStep(build_step_parts(model, TEXT, config), config, CPU, torch.float32)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    waits: list[Tensor | None] = []
    monkeypatch.setattr(throughput, "_wait", lambda _: waits.append(model.token_embedding.weight.grad))
    assert min(timed_step(train_step, 0)) > 0
    assert [grad is None for grad in waits] == [False, True]  # after the gradients, and after the update
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
