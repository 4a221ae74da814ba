"""Counting arithmetic, the peak it is compared with, and measuring a step without leaving traces."""

import pytest
import torch

from minigpt.config import PRESETS, GPTConfig, TrainConfig
from minigpt.training import throughput
from minigpt.training.throughput import flops_per_token, peak, seconds_per_step

CPU = torch.device("cpu")
TINY = GPTConfig(vocab_size=50, n_positions=8, n_embd=8, n_layer=1, n_head=2)


def test_the_small_gpt2_takes_the_arithmetic_that_the_formula_says() -> None:
    # 6 x (124,439,808 - 1024 x 768) + 12 x 12 x 768 x 1024, as nanoGPT's estimate_mfu counts it for one token
    assert flops_per_token(PRESETS["gpt2"], 1024) == 6 * 123_653_376 + 113_246_208
    assert flops_per_token(PRESETS["gpt2"], 512) == 6 * 123_653_376 + 113_246_208 / 2


def test_a_known_gpu_has_its_data_sheet_and_an_unknown_one_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput, "_matmul_flops", lambda *_: 7e12)
    names = {"NVIDIA H200": 989e12, "NVIDIA H100 PCIe": 756e12, "NVIDIA GeForce RTX 4090": 165e12, "Mystery 9": 7e12}
    for index, (name, flops) in enumerate(names.items()):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _, name=name: name)
        found = peak(torch.device("cuda", 40 + index), torch.bfloat16)
        assert found.flops == flops
        assert ("data sheet" in found.source) == (name != "Mystery 9")
    # Float32 has no data sheet here: what TF32 comes to is measured.
    assert "measured" in peak(torch.device("cuda", 50), torch.float32).source


def test_the_peak_of_a_cpu_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    peak.cache_clear()
    first = peak(CPU, torch.float32)
    assert first.flops > 1e8
    monkeypatch.setattr(throughput, "_matmul_flops", lambda *_: 1.0)
    assert peak(CPU, torch.float32) is first


def test_measuring_a_step_leaves_the_random_state_alone() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    config = TrainConfig(steps=1, context_length=8, batch_size=4)
    assert seconds_per_step(TINY, config, CPU, seconds=0.01) > 0
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("processes", "rows"), [(1, 6), (2, 3), (8, 1)])
def test_one_of_several_processes_is_measured_on_its_part_of_the_batch(
    monkeypatch: pytest.MonkeyPatch, processes: int, rows: int
) -> None:
    seen = []
    batch = throughput._RandomTokens.batch

    def watched(self: throughput._RandomTokens, *rest: object) -> object:
        seen.append(len(rest[4]))  # type: ignore[arg-type]
        return batch(self, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(throughput._RandomTokens, "batch", watched)
    config = TrainConfig(steps=1, context_length=8, batch_size=6)
    seconds_per_step(TINY, config, CPU, processes=processes, seconds=0.01)
    assert set(seen) == {rows}


def test_a_step_too_long_to_wait_for_is_measured_in_small_and_scaled_by_its_arithmetic() -> None:
    config = TrainConfig(steps=1, context_length=1024, batch_size=8)
    small, less, scale = throughput._affordable(PRESETS["gpt2-xl"], config, 1e11)
    assert (small.n_layer, less.batch_size) == (1, 1)
    assert less.context_length is not None
    work = flops_per_token(small, less.context_length) * less.context_length
    assert work == pytest.approx(1e11, rel=0.1)
    assert scale == pytest.approx(flops_per_token(PRESETS["gpt2-xl"], 1024) * 8 * 1024 / work)
    assert throughput._affordable(TINY, config.replace(context_length=8), 1e11) == (
        TINY, config.replace(context_length=8), 1.0
    )  # fmt: skip
