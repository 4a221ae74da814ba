"""How fast this machine trains a model, and what share of its arithmetic that is; it chooses nothing."""

import functools
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from minigpt.config import GPTConfig, TrainConfig
from minigpt.device import resolve_dtype
from minigpt.model.gpt import GPT
from minigpt.training.distributed import World
from minigpt.training.stepping import Stepper

# Dense bfloat16 TFLOP/s by the makers' data sheets, for names as torch gives them.
_DATA_SHEETS = {
    "H200": 989, "H100 PCIe": 756, "H100 NVL": 835, "H100": 989, "B200": 2250, "A100": 312, "A40": 150, "A10G": 70,
    "L40S": 362, "L4": 121, "RTX 5090": 210, "RTX 4090": 165, "RTX 3090": 71,
}  # fmt: skip


@dataclass(frozen=True)
class Peak:
    """The most a device does in a second, and where that figure is from."""

    flops: float
    source: str


def flops_per_token(config: GPTConfig, context: int) -> float:
    """Floating-point operations of one training token, forwards and backwards: 6 N + 12 L C T.

    N are the parameters without the positions, which no matrix product touches; the second term is attention's scores
    and sums, counted as if the upper triangle were computed too.
    Source: Chowdhery et al. 2022 (PaLM), appendix B.
    """
    parameters = config.n_parameters - config.n_positions * config.n_embd
    return 6 * parameters + 12 * config.n_layer * config.n_embd * context


@functools.cache
def peak(device: torch.device, dtype: torch.dtype) -> Peak:
    """The data sheet's figure for a known GPU in bfloat16 or float16, else what a large matrix product reaches here."""
    if device.type == "cuda" and dtype in (torch.bfloat16, torch.float16):
        name = torch.cuda.get_device_name(device)
        for known, teraflops in _DATA_SHEETS.items():
            if known in name:
                return Peak(teraflops * 1e12, f"{known} data sheet, {teraflops} TFLOP/s")
    flops = _matmul_flops(device, dtype)
    return Peak(flops, f"measured matrix products, {flops / 1e12:.3g} TFLOP/s")


def _matmul_flops(device: torch.device, dtype: torch.dtype) -> float:
    """The best of a few square matrix products."""
    size, rounds = (8192, 10) if device.type == "cuda" else (1024, 8)
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    best = 0.0
    for _ in range(rounds):
        began = time.perf_counter()
        a @ b
        _wait(device)
        best = max(best, 2 * size**3 / (time.perf_counter() - began))
    return best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


class _RandomTokens:
    """Stands in for a corpus where only the time counts."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def batch(
        self, _step: int, _size: int, length: int, _seed: int, rows: range, _noise: float, _bpe_dropout: float
    ) -> tuple[Tensor, Tensor]:
        ids = torch.randint(self.vocab_size, (len(rows), length + 1))
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def seconds_per_step(
    model: GPTConfig, config: TrainConfig, device: torch.device, processes: int = 1, seconds: float = 0.4
) -> float:
    """What one optimizer step takes here: the median over about so many seconds, the first step left out where there
    are others. One of several processes takes its part of the batch. A step that would take long is measured on fewer
    sequences, layers and tokens, and scaled by the arithmetic. Leaves torch's random state as it was."""
    share = config.replace(batch_size=max(1, config.sequences_per_step // processes), batch_tokens=None)
    model, share, scale = _affordable(
        model, share, 2 * seconds * peak(device, resolve_dtype(share.dtype, device)).flops
    )
    state = torch.get_rng_state()
    try:
        stepper = Stepper(
            GPT(model).to(device),
            _RandomTokens(model.vocab_size),
            share,
            device,
            resolve_dtype(config.dtype, device),
            World(),
        )
        took: list[float] = []
        while sum(took) < seconds or (len(took) == 1 and took[0] < 4 * seconds):
            began = time.perf_counter()
            stepper.step(len(took), 0.0)
            _wait(device)
            took.append(time.perf_counter() - began)
    finally:
        torch.set_rng_state(state)
    rest = sorted(took[1:]) or took
    return scale * rest[len(rest) // 2]


def _affordable(model: GPTConfig, config: TrainConfig, flops: float) -> tuple[GPTConfig, TrainConfig, float]:
    """A model and a batch of at most about so many floating-point operations a step, and how many times more the ones
    given have."""

    def work(model: GPTConfig, config: TrainConfig) -> float:
        context = config.context_length or model.n_positions
        return flops_per_token(model, context) * config.batch_size * context

    def fewer(count: int) -> int:
        return max(1, int(count * flops / work(model, config)))

    whole = work(model, config)
    if whole > flops:
        config = config.replace(batch_size=fewer(config.batch_size), micro_batch_size=None)
    if work(model, config) > flops:
        model = model.replace(n_layer=fewer(model.n_layer))
    if work(model, config) > flops:
        config = config.replace(context_length=fewer(config.context_length or model.n_positions))
    return model, config, whole / work(model, config)
