"""The choice of a device and a dtype, the memory they have, and the model on a GPU."""

import itertools
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from builders import new_model

from minigpt import cgroups
from minigpt import device as device_module
from minigpt.config import GPTConfig
from minigpt.device import (
    autocast,
    free_memory,
    keep_freed_memory,
    multiplies_bfloat16_faster,
    resolve_device,
    resolve_dtype,
    resolve_generation_dtype,
)
from minigpt.errors import DeviceError
from minigpt.model.attention import CausalSelfAttention
from minigpt.model.gpt import GPT
from minigpt.model.kv_cache import KVCache

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def machine_with(monkeypatch: pytest.MonkeyPatch, gpus: int, mps: bool = False) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


@pytest.mark.parametrize(
    ("gpus", "mps", "chosen"), [(2, False, "cuda"), (0, True, "mps"), (1, True, "cuda"), (0, False, "cpu")]
)
def test_auto_is_the_fastest_available_device(
    monkeypatch: pytest.MonkeyPatch, gpus: int, mps: bool, chosen: str
) -> None:
    machine_with(monkeypatch, gpus, mps)
    assert resolve_device() == resolve_device("auto") == torch.device(chosen)


@pytest.mark.parametrize("name", ["cpu", "cuda", "cuda:1", "mps"])
def test_an_available_device_is_chosen_by_name(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    machine_with(monkeypatch, gpus=2, mps=True)
    assert resolve_device(name) == torch.device(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gpu", "device ('gpu') must be auto, cpu, cuda, cuda:N or mps"),
        ("", "device ('') must be auto, cpu, cuda, cuda:N or mps"),
        ("cuda:x", "device ('cuda:x') must be auto, cpu, cuda, cuda:N or mps"),
        ("cuda:-1", "device ('cuda:-1') must be auto, cpu, cuda, cuda:N or mps"),
        ("meta", "device ('meta') must be auto, cpu, cuda, cuda:N or mps"),
        ("cuda", "device ('cuda') is not on this machine: PyTorch finds no CUDA device; use cpu"),
        ("mps", "device ('mps') is not on this machine; use cpu"),
    ],
)
def test_an_unavailable_device_is_an_error_of_one_sentence(
    monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    machine_with(monkeypatch, gpus=0)
    with pytest.raises(DeviceError) as caught:
        resolve_device(name)
    assert str(caught.value) == message


@pytest.mark.parametrize(("gpus", "message"), [(1, "it has cuda:0$"), (2, "it has cuda:0 to cuda:1$")])
def test_the_error_for_a_gpu_that_does_not_exist_names_the_gpus(
    monkeypatch: pytest.MonkeyPatch, gpus: int, message: str
) -> None:
    machine_with(monkeypatch, gpus=gpus)
    with pytest.raises(DeviceError, match=message):
        resolve_device("cuda:2")


@pytest.mark.parametrize(
    ("capability", "dtype"), [((7, 5), torch.float16), ((8, 0), torch.bfloat16), ((9, 0), torch.bfloat16)]
)
def test_the_automatic_dtype_on_cuda_is_bfloat16_since_ampere(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], dtype: torch.dtype
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert resolve_dtype("auto", CUDA) == dtype


def test_the_automatic_dtype_elsewhere_is_float32() -> None:
    assert resolve_dtype("auto", CPU) == torch.float32
    assert resolve_dtype("auto", torch.device("mps")) == torch.float32


@pytest.fixture
def unmeasured() -> Iterator[None]:
    """Makes the test, and the tests after it, measure the CPU again."""
    multiplies_bfloat16_faster.cache_clear()
    yield
    multiplies_bfloat16_faster.cache_clear()


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize(
    ("float32", "bfloat16", "faster"),
    [([1], [0.5], True), ([1], [0.9], False), ([1], [4], False), ([9, 1], [9, 0.5], True)],
)
def test_the_faster_dtype_of_a_cpu_is_measured(
    monkeypatch: pytest.MonkeyPatch, float32: list[float], bfloat16: list[float], faster: bool
) -> None:
    """A fake clock gives the alternating products these durations in seconds; the first of all may be slower."""
    durations = itertools.chain(*zip(float32, bfloat16, strict=True), itertools.cycle((float32[-1], bfloat16[-1])))
    readings = itertools.accumulate(itertools.chain.from_iterable((0.25, seconds) for seconds in durations))
    monkeypatch.setattr(device_module.time, "perf_counter", lambda: next(readings))
    assert multiplies_bfloat16_faster() is faster
    monkeypatch.setattr(device_module.time, "perf_counter", None)
    assert multiplies_bfloat16_faster() is faster  # measured once


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc's allocator")
def test_freed_memory_is_used_again_without_new_pages() -> None:
    import resource

    def pages() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        blocks = [torch.ones(2**21) for _ in range(8)]  # 8 MB each: by default glibc returns 64 MB to the system
        del blocks
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    keep_freed_memory()
    # The first calls fill the holes that earlier blocks left; without the option every call takes 16,384 pages.
    assert min(pages() for _ in range(8)) < 2000


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("float16", "dtype ('float16') needs a GPU; on a CPU use float32 or bfloat16"),
        ("int8", "dtype ('int8') must be auto, float32, bfloat16, float16"),
    ],
)
def test_an_unavailable_dtype_is_an_error_of_one_sentence(name: str, message: str) -> None:
    with pytest.raises(DeviceError) as caught:
        resolve_dtype(name, CPU)
    assert str(caught.value) == message


def test_float32_does_not_change_an_outer_autocast() -> None:
    with autocast(CPU, torch.bfloat16), autocast(CPU, torch.float32):
        assert (torch.eye(3) @ torch.eye(3)).dtype == torch.bfloat16


def test_free_memory_on_a_gpu_includes_pytorchs_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (5_000, 90_000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 700)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 300)
    assert free_memory(CUDA) == 5_400


LIMITED = {  # a control group of version 2; below, one of version 1
    "memory.max": "1000",
    "memory.current": "900",
    "memory.stat": "anon 600\nfile 300\ninactive_file 250\nactive_file 40\n",
}
LIMITED_1 = {
    "memory.limit_in_bytes": "1000",
    "memory.usage_in_bytes": "900",
    "memory.stat": "inactive_file 1\ntotal_inactive_file 250\ntotal_active_file 40\n",
}
TIGHTER = {"memory.max": "990", "memory.current": "900", "memory.stat": "anon 900\n"}


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, 2_048_000),
        ({"memory.max": "max", "memory.current": "900", "memory.stat": "inactive_file 7"}, 2_048_000),
        ({"memory.max": "1000", "memory.current": "900", "memory.stat": "anon 600\n"}, 100),
        (LIMITED, 390),
        ({f"memory/{name}": text for name, text in LIMITED_1.items()}, 390),
        ({"memory.max": "1000", "memory.current": "1300", "memory.stat": "inactive_file 20\n"}, 0),
        ({f"job/{name}": text for name, text in LIMITED.items()}, 390),  # a parent group, set by a batch system
        ({f"job/step/{name}": text for name, text in LIMITED.items()} | TIGHTER, 90),
        ({f"elsewhere/{name}": text for name, text in LIMITED.items()}, 2_048_000),
        ({f"memory/outer/{name}": text for name, text in LIMITED_1.items()}, 390),
    ],
)
def test_free_memory_is_limited_by_the_machine_and_its_container_without_cached_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: dict[str, str], free: int
) -> None:
    (tmp_path / "groups").write_text("4:cpu,memory:/outer/inner\n1:cpu:/none\n0::/job/step\n")
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=2_048_000))
    monkeypatch.setattr(cgroups, "_OWN_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(cgroups, "_CGROUP", tmp_path)
    assert free_memory(CPU) == free


def test_memory_on_windows_is_what_the_system_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=5_000))
    monkeypatch.setattr(sys, "platform", "win32")
    assert free_memory(CPU) == 5_000


@pytest.mark.parametrize(
    ("name", "device", "capability", "expected"),
    [
        ("auto", "cuda", (9, 0), torch.bfloat16),
        ("auto", "cuda", (8, 0), torch.bfloat16),
        ("auto", "cuda", (7, 5), torch.float32),  # float16 may overflow in an imported model
        ("auto", "cpu", (9, 0), torch.float32),
        ("float32", "cuda", (9, 0), torch.float32),
        ("float16", "cuda", (7, 5), torch.float16),
    ],
)
def test_a_model_generates_in_bfloat16_where_the_gpu_has_it(
    monkeypatch: pytest.MonkeyPatch, name: str, device: str, capability: tuple[int, int], expected: torch.dtype
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert resolve_generation_dtype(name, torch.device(device)) == expected


# On a GPU

needs_gpu = pytest.mark.gpu
CONFIG = GPTConfig(vocab_size=101, n_positions=64, n_embd=96, n_layer=3, n_head=6)


def on_both_devices() -> tuple[GPT, GPT]:
    """A model on the CPU and its copy on the GPU."""
    return new_model(CONFIG, scale=5), new_model(CONFIG, scale=5).to(CUDA)


@needs_gpu
def test_attention_on_a_gpu_equals_attention_on_the_cpu() -> None:
    torch.manual_seed(0)
    here, there = CausalSelfAttention(CONFIG), CausalSelfAttention(CONFIG)
    there.load_state_dict(here.state_dict())
    there.to(CUDA)
    assert there.mask.is_cuda
    x = torch.randn(4, 64, 96)
    y = x.to(CUDA)
    x.requires_grad_()
    y.requires_grad_()
    one, other = here(x), there(y)
    one.square().sum().backward()
    other.square().sum().backward()
    torch.testing.assert_close(other.cpu(), one, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(y.grad.cpu(), x.grad, rtol=1e-3, atol=1e-4)
    by_formula, weights = there.forward_with_weights(y)
    torch.testing.assert_close(by_formula, other, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(weights.cpu(), here.forward_with_weights(x)[1], rtol=1e-4, atol=1e-5)


@needs_gpu
def test_the_model_on_a_gpu_equals_the_model_on_the_cpu() -> None:
    here, there = on_both_devices()
    ids = torch.randint(101, (4, 64))
    torch.testing.assert_close(there(ids.to(CUDA)).cpu(), here(ids), rtol=1e-3, atol=1e-3)


@needs_gpu
def test_the_cache_does_not_change_the_logits_on_a_gpu() -> None:
    _, model = on_both_devices()
    ids = torch.randint(101, (2, 64), device=CUDA)
    cache = KVCache(CONFIG, 2, device=CUDA)
    with torch.no_grad():
        pieces = [model.features(ids[:, start:end], cache) for start, end in ((0, 40), (40, 41), (41, 64))]
        torch.testing.assert_close(model.logits(torch.cat(pieces, dim=1)), model(ids), rtol=1e-3, atol=1e-3)
