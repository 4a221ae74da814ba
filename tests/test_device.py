"""Choosing a device and its arithmetic, its memory, and the model on a GPU against the model on the CPU."""

import itertools
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from minigpt import device as device_module
from minigpt.config import GPTConfig
from minigpt.device import (
    autocast,
    free_memory,
    keep_freed_memory,
    multiplies_bfloat16_faster,
    peak_memory,
    resolve_device,
    resolve_dtype,
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
def test_auto_is_the_fastest_device_there_is(
    monkeypatch: pytest.MonkeyPatch, gpus: int, mps: bool, chosen: str
) -> None:
    machine_with(monkeypatch, gpus, mps)
    assert resolve_device() == resolve_device("auto") == torch.device(chosen)


@pytest.mark.parametrize("name", ["cpu", "cuda", "cuda:1", "mps"])
def test_a_device_that_is_here_is_taken_by_name(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
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
        ("cuda", "device ('cuda') is not on this machine: torch sees no CUDA device here; use cpu"),
        ("mps", "device ('mps') is not on this machine; use cpu"),
    ],
)
def test_a_device_that_cannot_be_had_is_one_sentence(monkeypatch: pytest.MonkeyPatch, name: str, message: str) -> None:
    machine_with(monkeypatch, gpus=0)
    with pytest.raises(DeviceError) as caught:
        resolve_device(name)
    assert str(caught.value) == message


def test_a_gpu_beyond_the_last_says_which_are_here(monkeypatch: pytest.MonkeyPatch) -> None:
    machine_with(monkeypatch, gpus=2)
    with pytest.raises(DeviceError, match="only cuda:0 to cuda:1 are here"):
        resolve_device("cuda:2")


@pytest.mark.parametrize(
    ("capability", "dtype"), [((7, 5), torch.float16), ((8, 0), torch.bfloat16), ((9, 0), torch.bfloat16)]
)
def test_auto_arithmetic_on_a_gpu_is_bfloat16_from_ampere_on(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], dtype: torch.dtype
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert resolve_dtype("auto", CUDA) == dtype


def test_auto_arithmetic_elsewhere_is_float32() -> None:
    assert resolve_dtype("auto", CPU) == torch.float32
    assert resolve_dtype("auto", torch.device("mps")) == torch.float32


@pytest.fixture
def unmeasured() -> Iterator[None]:
    """Lets the CPU be measured anew, in the test and after it."""
    multiplies_bfloat16_faster.cache_clear()
    yield
    multiplies_bfloat16_faster.cache_clear()


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize(
    ("exact", "coarse", "faster"),
    [([1], [0.5], True), ([1], [0.9], False), ([1], [4], False), ([9, 1], [9, 0.5], True)],
)
def test_what_a_cpu_multiplies_faster_is_measured(
    monkeypatch: pytest.MonkeyPatch, exact: list[float], coarse: list[float], faster: bool
) -> None:
    """By a clock on which products in turn take so many seconds, the first of all perhaps longer."""
    took = itertools.chain(*zip(exact, coarse, strict=True), itertools.cycle((exact[-1], coarse[-1])))
    readings = itertools.accumulate(itertools.chain.from_iterable((0.25, seconds) for seconds in took))
    monkeypatch.setattr(device_module.time, "perf_counter", lambda: next(readings))
    assert multiplies_bfloat16_faster() is faster
    monkeypatch.setattr(device_module.time, "perf_counter", None)
    assert multiplies_bfloat16_faster() is faster  # measured once


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_memory_that_was_freed_is_used_again_without_asking_the_system() -> None:
    import resource

    def pages() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        held = [torch.ones(2**21) for _ in range(8)]  # 8 MB each: glibc would give 64 MB back
        del held
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    keep_freed_memory()
    pages()
    assert pages() < 8000  # of 16,384


def test_an_arithmetic_is_taken_by_name() -> None:
    assert resolve_dtype("float32", CPU) == torch.float32
    assert resolve_dtype("bfloat16", CPU) == torch.bfloat16
    assert resolve_dtype("float16", CUDA) == torch.float16


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("float16", "dtype ('float16') needs a GPU; on a CPU use float32 or bfloat16"),
        ("int8", "dtype ('int8') must be auto, float32, bfloat16, float16"),
    ],
)
def test_an_arithmetic_that_cannot_be_had_is_one_sentence(name: str, message: str) -> None:
    with pytest.raises(DeviceError) as caught:
        resolve_dtype(name, CPU)
    assert str(caught.value) == message


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_multiplies_matrices_in_the_dtype(dtype: torch.dtype) -> None:
    matrix = torch.eye(3)
    with autocast(CPU, dtype):
        assert (matrix @ matrix).dtype == dtype
        assert (matrix + matrix).dtype == torch.float32
    assert (matrix @ matrix).dtype == torch.float32


def test_float32_leaves_an_outer_autocast_alone() -> None:
    with autocast(CPU, torch.bfloat16), autocast(CPU, torch.float32):
        assert (torch.eye(3) @ torch.eye(3)).dtype == torch.bfloat16


def test_free_memory_on_a_gpu_counts_what_torch_has_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (5_000, 90_000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 700)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 300)
    assert free_memory(CUDA) == 5_400


LIMITED = {  # a control group of version 2, and one of version 1
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
        ({f"job/{name}": text for name, text in LIMITED.items()}, 390),  # a batch system's, above the process's own
        ({f"job/step/{name}": text for name, text in LIMITED.items()} | TIGHTER, 90),
        ({f"elsewhere/{name}": text for name, text in LIMITED.items()}, 2_048_000),
        ({f"memory/outer/{name}": text for name, text in LIMITED_1.items()}, 390),
    ],
)
def test_free_memory_is_what_the_machine_and_its_container_leave_files_read_before_aside(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: dict[str, str], free: int
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:  8000 kB\nMemAvailable:  2000 kB\n")
    (tmp_path / "groups").write_text("4:cpu,memory:/outer/inner\n1:cpu:/none\n0::/job/step\n")
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(device_module, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(device_module, "_OWN_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(device_module, "_CGROUP", tmp_path)
    assert free_memory(CPU) == free


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's own account of the process")
def test_peak_memory_is_this_processes_own_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    machine_with(monkeypatch, gpus=0)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines())
    kilobytes = int(status["VmHWM"].removesuffix("kB"))
    assert peak_memory(torch.device("cpu")) == pytest.approx(kilobytes * 1024, rel=0.02)


# On a GPU

needs_gpu = pytest.mark.gpu
CONFIG = GPTConfig(vocab_size=101, n_positions=64, n_embd=96, n_layer=3, n_head=6)


@pytest.fixture(autouse=True)
def exact_float32() -> Iterator[None]:
    """Full float32 products on the GPU, whatever an earlier test's training run has asked of torch."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def twins() -> tuple[GPT, GPT]:
    """One model on the CPU and its copy on the GPU, with weights large enough to be felt."""
    torch.manual_seed(0)
    here, there = GPT(CONFIG), GPT(CONFIG)
    with torch.no_grad():
        for parameter in here.parameters():
            if parameter.dim() == 2:
                parameter.mul_(5)
    there.load_state_dict(here.state_dict())
    return here, there.to(CUDA)


@needs_gpu
@pytest.mark.parametrize("name", ["auto", "cuda", "cuda:0"])
def test_the_gpu_is_found(name: str) -> None:
    assert resolve_device(name).type == "cuda"


@needs_gpu
def test_attention_on_the_gpu_is_attention_on_the_cpu() -> None:
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
    written, weights = there.forward_with_weights(y)
    torch.testing.assert_close(written, other, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(weights.cpu(), here.forward_with_weights(x)[1], rtol=1e-4, atol=1e-5)


@needs_gpu
def test_the_model_on_the_gpu_is_the_model_on_the_cpu() -> None:
    here, there = twins()
    ids = torch.randint(101, (4, 64))
    torch.testing.assert_close(there(ids.to(CUDA)).cpu(), here(ids), rtol=1e-3, atol=1e-3)


@needs_gpu
def test_the_cache_changes_no_logit_on_the_gpu() -> None:
    _, model = twins()
    ids = torch.randint(101, (2, 64), device=CUDA)
    cache = KVCache(CONFIG, 2, device=CUDA)
    with torch.no_grad():
        pieces = [model.features(ids[:, start:end], cache) for start, end in ((0, 40), (40, 41), (41, 64))]
        torch.testing.assert_close(model.logits(torch.cat(pieces, dim=1)), model(ids), rtol=1e-3, atol=1e-3)


@needs_gpu
def test_bfloat16_autocast_runs_forward_and_backward_on_the_gpu() -> None:
    _, model = twins()
    ids = torch.randint(101, (4, 64), device=CUDA)
    with autocast(CUDA, torch.bfloat16):
        logits = model(ids)
    assert logits.dtype == torch.bfloat16
    logits.float().logsumexp(dim=-1).mean().backward()
    assert all(
        parameter.grad.dtype == torch.float32 and parameter.grad.isfinite().all() for parameter in model.parameters()
    )
    full = model(ids)
    assert (logits.float() - full).abs().max() < 0.05 * full.abs().max()


@needs_gpu
def test_a_model_from_tensors_on_the_gpu_works_there() -> None:
    _, source = twins()
    model = GPT.from_tensors(CONFIG, source.state_dict())
    ids = torch.randint(101, (2, 8), device=CUDA)
    cache = KVCache(CONFIG, 2, device=CUDA)
    with torch.no_grad():
        pieces = [model.features(ids[:, :5], cache), model.features(ids[:, 5:], cache)]
        torch.testing.assert_close(model.logits(torch.cat(pieces, dim=1)), source(ids), rtol=1e-3, atol=1e-3)


@needs_gpu
def test_peak_memory_on_a_gpu_is_what_torch_held_there() -> None:
    held = torch.ones(25_000_000, device=CUDA)
    assert peak_memory(CUDA) == torch.cuda.max_memory_allocated(CUDA) >= held.nbytes
