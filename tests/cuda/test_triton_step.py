"""The decode step in Triton kernels: values in Triton's interpreter, and compilation for a GPU; no GPU is needed.

`make test-triton` runs both. Without Triton, which PyTorch for a CPU does not bring, these tests are skipped.
"""

import os
from typing import Any

import pytest
import torch
from builders import random_model

from minigpt import GPT
from minigpt.cuda.graphs import kernel_step, static_step
from minigpt.model.kv_cache import KVCache

triton = pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
interpreted = pytest.mark.skipif(not INTERPRETED, reason="TRITON_INTERPRET is not 1")
compiled = pytest.mark.skipif(INTERPRETED, reason="TRITON_INTERPRET is 1")


def filled_cache(model: GPT, rows: int, length: int) -> KVCache:
    """A cache whose first positions hold random keys and values."""
    torch.manual_seed(1)
    cache = KVCache(model.config, rows, dtype=model.token_embedding.weight.dtype)
    for layer in cache.layers:
        layer.keys[:, :, :length].normal_()
        layer.values[:, :, :length].normal_()
    return cache


@interpreted
@pytest.mark.parametrize("gelu", ["gelu_new", "gelu"])
@pytest.mark.parametrize(
    ("rows", "n_positions", "dtype", "tolerance"),
    [
        (1, 300, torch.float32, 1e-5),  # more positions than the programs of a head read at one time
        (2, 300, torch.float32, 1e-5),
        (1, 40, torch.bfloat16, 0.03),
        (1, 40, torch.float16, 0.01),
    ],
)
def test_the_kernels_compute_the_step(
    gelu: str, rows: int, n_positions: int, dtype: torch.dtype, tolerance: float
) -> None:
    from minigpt.cuda.triton_step import TritonStep

    model = random_model(vocab_size=101, n_positions=n_positions, n_embd=48, n_head=3, activation_function=gelu).to(
        dtype
    )
    start = n_positions - 30
    ours, theirs = (filled_cache(model, rows, start) for _ in range(2))
    padding = torch.tensor([0, start // 3][:rows])
    step = TritonStep(model, ours, overlaps=False, processors=4)
    with torch.inference_mode():
        for at in range(start, start + 3):
            ids = torch.randint(101, (rows, 1))
            found = step(ids[:, 0], torch.full((rows,), at), padding)
            expected = static_step(model, theirs, ids, torch.tensor([at]), padding, n_positions)[:, 0]
            torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))
    for one, other in zip(ours.layers, theirs.layers, strict=True):
        torch.testing.assert_close(one.keys, other.keys, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(one.values, other.values, rtol=tolerance, atol=tolerance)


@compiled
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("width", [768, 1600])
def test_the_kernels_are_compiled_for_a_gpu_and_load_their_weights_before_they_wait(
    capability: int, width: int
) -> None:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from minigpt.cuda import triton_step

    overlaps = capability >= 90

    def ptx(kernel: Any, types: dict[str, str], constants: dict[str, Any]) -> str:
        signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
        values = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
        options = {"launch_pdl": True} if overlaps else {}
        target = GPUTarget("cuda", capability, 32)
        return triton.compile(ASTSource(kernel, signature, values), target=target, options=options).asm["ptx"]

    shape = {"C": width, "D": 64, "P": 1024, "SPLITS": 4, "OVERLAPS": overlaps}
    plain = dict.fromkeys(("NORM", "MERGE", "ADD", "CACHE"), False) | {"BIAS": True, "GELU": ""}
    number, index = "*fp32", "*i64"
    linear = dict.fromkeys(("weight", "bias", "norm_weight", "norm_bias", "keys", "values"), "*bf16")
    linear |= {"x": number, "sums": number, "at": index, "out": number}
    for n, k, changes in (
        (3 * width, width, {"NORM": True, "CACHE": True}),
        (width, width, {"MERGE": True, "ADD": True}),
        (4 * width, width, {"NORM": True, "GELU": "tanh"}),
        (width, 4 * width, {"ADD": True}),
        (50257, width, {"NORM": True, "BIAS": False}),
    ):
        sizes = {"N": n, "K": k, "EPS": 1e-5, "ROWS": 2, "BLOCK_N": 2, "BLOCK_K": triton.next_power_of_2(k)}
        code = ptx(triton_step.linear_kernel, linear, shape | plain | sizes | changes)
        assert ("griddepcontrol.wait" in code) == overlaps
        if overlaps:
            assert code.index("ld.global") < code.index("griddepcontrol.wait")
    types = {"query": number, "keys": "*bf16", "values": "*bf16", "at": index, "padding": index, "y": number}
    ptx(triton_step.attend_kernel, types | {"sums": number}, shape | {"BLOCK_S": 64, "BLOCK_D": 64})
    types = {"ids": index, "at": index, "padding": index, "tokens": "*bf16", "positions": "*bf16", "x": number}
    ptx(triton_step.embed_kernel, types, {"C": width, "BLOCK": 2048, "OVERLAPS": overlaps})


def test_a_model_on_a_cpu_has_no_kernels() -> None:
    model = random_model()
    assert kernel_step(model, KVCache(model.config, 1)) is None
