"""How fast this machine trains a model, and what share of its arithmetic that is; it chooses nothing."""

import functools
import gc
import statistics
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from minigpt.config import GPTConfig, TrainConfig
from minigpt.device import allow_tf32, free_memory, resolve_dtype
from minigpt.errors import TrainingError
from minigpt.model.gpt import GPT
from minigpt.training.distributed import World
from minigpt.training.memory import activation_bytes, is_out_of_memory, state_bytes
from minigpt.training.step import TrainStep

# Dense bfloat16 TFLOP/s by the makers' data sheets, for names as torch gives them: the first that is among the words of
# a device's name, if none of the words that make it another device is.
_DATA_SHEETS = {
    "H200 NVL": 835, "H200": 989, "H100 PCIe": 756, "H100 NVL": 835, "H100": 989, "B200": 2250, "A100": 312, "A40": 150,
    "A10G": 70, "L40S": 362, "L4": 121, "RTX 5090": 210, "RTX 4090": 165, "RTX 3090": 71,
}  # fmt: skip
_OTHERS = {"Laptop", "Ti", "D", "MIG"}


@dataclass(frozen=True)
class Peak:
    """The most a device does in a second, and where that figure is from."""

    flops: float
    source: str


@functools.cache
def peak(device: torch.device, dtype: torch.dtype) -> Peak:
    """The data sheet's figure for a known GPU in bfloat16 or float16, else what a large matrix product reaches here."""
    if device.type == "cuda" and dtype in (torch.bfloat16, torch.float16):
        words = torch.cuda.get_device_name(device).replace("-", " ").split()
        for known, teraflops in _DATA_SHEETS.items():
            if f" {known} " in f" {' '.join(words)} " and not _OTHERS & set(words):
                return Peak(teraflops * 1e12, f"{known} data sheet, {teraflops} TFLOP/s")
    allow_tf32(device)
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
    """What one optimizer step takes here, without torch.compile: the median over about so many seconds, the first step
    left out where there are others. One of several processes takes its part of the batch. A step that would take long,
    or more memory than is free, is measured on fewer sequences, layers and tokens: its gradients are then scaled by
    their arithmetic, and its update, to which sequences and tokens are nothing, by the layers. Leaves torch's random
    state as it was.

    Raises: TrainingError where even that is more than the memory holds.
    """
    share = config.replace(batch_size=max(1, config.sequences_per_step // processes), batch_tokens=None)
    dtype = resolve_dtype(config.dtype, device)
    allow_tf32(device)
    state = torch.get_rng_state()
    try:
        flops, memory = 2 * seconds * peak(device, dtype).flops, free_memory(device)
        small, share, scale = _affordable(model, share, flops, memory, on_cpu=device.type == "cpu")
        took = _timed_steps(small, share, device, dtype, seconds)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise TrainingError(
            f"a training step of {model.n_embd} features (n_embd) is more than the memory of {device} holds, even in "
            "small; give a smaller model"
        ) from error
    finally:
        torch.set_rng_state(state)
        gc.collect()  # what torch imports for its first optimizer holds on to the frames, and by them to the model
    rest = took[1:] or took
    gradients, update = (statistics.median(each) for each in zip(*rest, strict=True))
    return scale * gradients + model.n_layer / small.n_layer * update


def _timed_steps(
    model: GPTConfig, config: TrainConfig, device: torch.device, dtype: torch.dtype, seconds: float
) -> list[tuple[float, float]]:
    """What the gradients and the update of each of some steps took, for about so many seconds in all."""
    stepper = TrainStep(GPT(model).to(device), _RandomTokens(model.vocab_size), config, device, dtype, World())
    took: list[tuple[float, float]] = []
    while (spent := sum(map(sum, took))) < seconds or (len(took) == 1 and spent < 4 * seconds):
        took.append(stepper.timed_step(len(took), lambda: _wait(device)))
    return took


def _affordable(
    model: GPTConfig, config: TrainConfig, flops: float, memory: int, *, on_cpu: bool
) -> tuple[GPTConfig, TrainConfig, float]:
    """A model and a batch of at most about so many floating-point operations a step and bytes of memory, and how many
    times more operations the ones given have."""

    def work(model: GPTConfig, config: TrainConfig) -> float:
        context = config.context_length or model.n_positions
        return model.flops_per_token(context) * config.batch_size * context

    def needs(model: GPTConfig, config: TrainConfig) -> int:
        context = config.context_length or model.n_positions
        at_once = min(config.micro_batch_size or config.batch_size, config.batch_size)
        checkpointing = config.checkpoint_activations == "on"
        kept = activation_bytes(model, context, at_once, checkpointing=checkpointing, on_cpu=on_cpu)
        return state_bytes(model, config.optimizer) + kept

    def fewer(count: int) -> int:
        return max(1, int(count * flops / work(model, config)))

    whole = work(model, config)
    if whole > flops:
        config = config.replace(batch_size=fewer(config.batch_size), micro_batch_size=None)
    if work(model, config) > flops:
        model = model.replace(n_layer=fewer(model.n_layer))
    if work(model, config) > flops:
        config = config.replace(context_length=fewer(config.context_length or model.n_positions))
    while model.n_layer > 1 and needs(model, config) > memory:
        model = model.replace(n_layer=model.n_layer - 1)
    return model, config, whole / work(model, config)
