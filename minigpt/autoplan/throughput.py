"""Measures how fast this machine trains a model, in which dtype it is faster, and what its peak arithmetic is."""

import functools
import gc
import math
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch

from minigpt.autoplan.all_settings import all_settings
from minigpt.autoplan.memory_estimates import activation_bytes, state_bytes
from minigpt.config import GPTConfig, TrainConfig
from minigpt.data.corpus import Corpus
from minigpt.device import free_memory, resolve_dtype
from minigpt.errors import TrainingError
from minigpt.evaluation.perplexity import evaluate
from minigpt.model.gpt import GPT
from minigpt.shared_cores.load_monitor import watch_load
from minigpt.training.memory import is_out_of_memory
from minigpt.training.prepare import prepare_model
from minigpt.training.step import TrainStep
from minigpt.training.step_parts import build_step_parts

# Dense bfloat16 TFLOP/s from the data sheets. The first of these names that torch's name of a device contains applies,
# unless torch's name also contains one of _OTHERS, which is another device.
_DATA_SHEETS = {
    "H200 NVL": 835, "H200": 989, "H100 PCIe": 756, "H100 NVL": 835, "H100": 989, "B200": 2250, "A100": 312, "A40": 150,
    "A10G": 70, "L40S": 362, "L4": 121, "RTX 5090": 210, "RTX 4090": 165, "RTX 3090": 71,
}  # fmt: skip
_OTHERS = {"Laptop", "Ti", "D", "MIG"}
_EVALUATING = 0.3  # seconds
_PEAK = 1.0  # seconds of matrix products, after which no more are measured
_WORTHWHILE = 1.1  # times as fast as float32: for less, bfloat16 is not worth its rounding
_CLEAR = 1.5  # times as fast as float32: for less, both are measured again

Measure = Callable[[GPTConfig, TrainConfig], float]
"""Returns the seconds that one optimizer step of a model takes on this machine."""


@dataclass(frozen=True)
class Timing:
    """The seconds of an optimizer step, the dtype they were measured in, and why that dtype; empty if it was given."""

    seconds: float
    dtype: str
    why: str = ""


class StepTimer:
    """Measures the step of each shape once, and chooses the faster dtype if the dtype is `auto`.

    `dtypes` are those to choose from, float32 first; if it is empty, as on a GPU, `auto` stays. Whether bfloat16 is
    faster depends on the machine and on the shape, so both are measured, twice if they are close. Its gain grows with
    the matrices: once it was worthwhile for a model, models of at least that width are measured in bfloat16 only.
    """

    def __init__(self, measure: Measure, dtypes: tuple[str, ...] = ()) -> None:
        self.measure, self.dtypes = measure, dtypes
        self.worthwhile_from = math.inf  # features
        self._known: dict[tuple[GPTConfig, TrainConfig], Timing] = {}

    def __call__(self, model: GPTConfig, config: TrainConfig) -> Timing:
        """The timing of a step of this model, in the given dtype or the one that is faster."""
        if (model, config) not in self._known:
            self._known[model, config] = self._measure(model, config)
        return self._known[model, config]

    def corrected(self, slowdown: float) -> "StepTimer":
        """A timer that knows what this one has measured, which took so many times as long as it should have."""
        timer = StepTimer(self.measure, self.dtypes)
        timer.worthwhile_from = self.worthwhile_from
        timer._known = {each: replace(took, seconds=took.seconds / slowdown) for each, took in self._known.items()}
        return timer

    def _measure(self, model: GPTConfig, config: TrainConfig) -> Timing:
        if config.dtype != "auto" or not self.dtypes:
            return Timing(self.measure(model, config), config.dtype)
        if "bfloat16" not in self.dtypes:
            float32 = self.measure(model, config.replace(dtype="float32"))
            return Timing(float32, "float32", "bfloat16 is no faster on this machine")
        bfloat16 = self.measure(model, config.replace(dtype="bfloat16"))
        if model.n_embd >= self.worthwhile_from:
            return Timing(bfloat16, "bfloat16", "faster here than float32, as measured on a smaller model")
        float32 = self.measure(model, config.replace(dtype="float32"))
        if float32 < _CLEAR * bfloat16:  # another program may have slowed one of them down
            bfloat16 = min(bfloat16, self.measure(model, config.replace(dtype="bfloat16")))
            float32 = min(float32, self.measure(model, config.replace(dtype="float32")))
        if float32 < _WORTHWHILE * bfloat16:
            return Timing(float32, "float32", f"bfloat16 is only {float32 / bfloat16:.2f} times as fast here")
        self.worthwhile_from = model.n_embd
        return Timing(bfloat16, "bfloat16", f"{float32 / bfloat16:.1f} times as fast here as float32")


@dataclass(frozen=True)
class Peak:
    """The highest arithmetic throughput of a device in FLOP/s, and the source of that figure."""

    flops: float
    source: str


@functools.cache
def peak(device: torch.device, dtype: torch.dtype) -> Peak:
    """The peak of a device: the data sheet's for a known GPU in bfloat16 or float16, else measured by large matmuls."""
    if device.type == "cuda" and dtype in (torch.bfloat16, torch.float16):
        words = torch.cuda.get_device_name(device).replace("-", " ").split()
        for known, teraflops in _DATA_SHEETS.items():
            if f" {known} " in f" {' '.join(words)} " and not _OTHERS & set(words):
                return Peak(teraflops * 1e12, f"{teraflops} TFLOP/s, {known} data sheet")
    flops = _matmul_flops(device, dtype)
    return Peak(flops, f"{flops / 1e12:.3g} TFLOP/s, measured")


def _matmul_flops(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of the fastest of a few square matrix products; of two, if each takes seconds."""
    size, rounds = (8192, 10) if device.type == "cuda" else (1024, 8)
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    took: list[float] = []
    while len(took) < 2 or (len(took) < rounds and sum(took) < _PEAK):
        began = time.perf_counter()
        a @ b
        _wait(device)
        took.append(time.perf_counter() - began)
    return 2 * size**3 / min(took)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def seconds_per_step(
    model: GPTConfig, config: TrainConfig, device: torch.device, text: Corpus, processes: int = 1, seconds: float = 0.4
) -> float:
    """Seconds that one optimizer step takes on this machine, without torch.compile.

    The median of the steps that fit into about `seconds`, without the first if there are others. The steps train on
    `text`; those of a distilled model have a teacher. With several `processes`, one of them takes its share of the
    batch. A step that would take long or need more memory than is free is measured with
    fewer sequences, layers and tokens: the time of the gradients is scaled by their arithmetic, and that of the update,
    which does not depend on sequences and tokens, by the layers. torch's random state stays as it was.

    Raises: TrainingError if even that needs more memory than there is.
    """
    share = config.replace(batch_size=max(1, config.sequences_per_step // processes), batch_tokens=None)
    dtype = resolve_dtype(config.dtype, device)
    state = torch.get_rng_state()
    try:
        flops, memory = 2 * seconds * peak(device, dtype).flops, free_memory(device)
        small, share, scale = _affordable(model, share, flops, memory, on_cpu=device.type == "cpu")
        took = _timed_steps(small, share, device, dtype, text, seconds)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise TrainingError(
            f"a training step of width {model.n_embd} (n_embd) needs more memory than {device} has, even with one "
            "layer and one sequence; give a smaller model or a shorter --context-length"
        ) from error
    finally:
        torch.set_rng_state(state)
        _free_first_model()
    rest = took[1:] or took
    gradients, update = (statistics.median(each) for each in zip(*rest, strict=True))
    return scale * gradients + model.n_layer / small.n_layer * update


@functools.cache
def _free_first_model() -> None:
    """Frees the model of the first measurement: what torch imports for it refers to the frames that hold it."""
    gc.collect()


def evaluation_seconds(
    model: GPTConfig, config: TrainConfig, corpus: Corpus, step: float, base: GPT | None = None
) -> float:
    """Seconds in which a CPU evaluates a validation token in float32, if a training step takes `step` seconds.

    Measured with `base`, which is to be fine-tuned, else with a new model, on as many tokens as take about a fifth of a
    second, without the first window; 0 without validation text. torch's random state stays as it was.
    """
    context = config.context_length or model.n_positions
    per_token = step / (config.sequences_per_step * context)
    tokens = min(config.eval_tokens, len(corpus.validation), max(context, int(_EVALUATING / per_token)))
    if tokens < 2:
        return 0.0
    with torch.random.fork_rng(devices=[]):
        measured_model = base or GPT(model)
    evaluate(measured_model, corpus.validation, context=context, max_tokens=context)  # warms up
    began = time.perf_counter()
    measured = evaluate(measured_model, corpus.validation, context=context, max_tokens=tokens)
    return (time.perf_counter() - began) / measured.tokens


def _timed_steps(
    model: GPTConfig, config: TrainConfig, device: torch.device, dtype: torch.dtype, text: Corpus, seconds: float
) -> list[tuple[float, float]]:
    """Seconds of the gradients and of the update for each of several steps, which take about `seconds` together."""
    untrained = GPT(model)
    prepare_model(untrained, config)
    teacher = GPT(model).to(device) if all_settings(config).distill == "on" else None
    parts = build_step_parts(untrained.to(device), text, config, dtype, teacher=teacher)
    train_step = TrainStep(parts, config, device, dtype)
    if device.type != "cpu":
        timed_step(train_step, 0)  # prepares the kernels, which can take longer than all other steps
    took: list[tuple[float, float]] = []
    while (spent := sum(map(sum, took))) < seconds or (len(took) == 1 and spent < 4 * seconds):
        took.append(timed_step(train_step, len(took)))
    return took


def timed_step(train_step: TrainStep, number: int) -> tuple[float, float]:
    """Takes a step with learning rate 0; returns the seconds that its gradients and its update took.

    On a CPU, a budget in minutes computes with as many threads as other programs leave free.
    """
    for optimizer in train_step.optimizers:
        for group in optimizer.param_groups:
            group["lr"] = 0.0
    device = train_step.device
    limited: AbstractContextManager[None] = nullcontext()
    if device.type == "cpu" and train_step.config.minutes is not None:
        limited = watch_load(torch.get_num_threads()).limited_threads()
    with limited:
        started = time.perf_counter()
        loss, n_scored = train_step.compute_gradients(number)
        _wait(device)
        middle = time.perf_counter()
        # A step that scores nothing takes as long as others.
        train_step.update(loss, None if n_scored is None else max(1, n_scored))
        _wait(device)
        return middle - started, time.perf_counter() - middle


def _affordable(
    model: GPTConfig, config: TrainConfig, flops: float, memory: int, *, on_cpu: bool
) -> tuple[GPTConfig, TrainConfig, float]:
    """A model and a batch that need about `flops` per step and `memory` bytes at most, and the ratio of the given
    arithmetic to theirs."""
    layers = model.n_layer

    def work(model: GPTConfig, config: TrainConfig) -> float:
        return config.flops_per_token(model) * config.batch_size * (config.context_length or model.n_positions)

    def needs(model: GPTConfig, config: TrainConfig) -> int:
        context = config.context_length or model.n_positions
        at_once = min(config.micro_batch_size or config.batch_size, config.batch_size)
        recompute = config.checkpoint_activations == "on"
        # The same part of the blocks is frozen.
        frozen = config.replace(freeze=all_settings(config).freeze * model.n_layer // layers)
        kept = activation_bytes(model, context, at_once, recompute=recompute, on_cpu=on_cpu, training=frozen)
        return state_bytes(model, config.optimizer, training=frozen) + model.mask_bytes + kept

    def fewer(count: int) -> int:
        return max(1, int(count * flops / work(model, config)))

    whole = work(model, config)
    if whole > flops:
        config = config.replace(batch_size=fewer(config.batch_size), micro_batch_size=None)
    if work(model, config) > flops:
        model = model.replace(n_layer=fewer(model.n_layer))
    if work(model, config) > flops:
        context = fewer(config.context_length or model.n_positions)
        config, model = config.replace(context_length=context), model.replace(n_positions=context)
    while model.n_layer > 1 and needs(model, config) > memory:
        model = model.replace(n_layer=model.n_layer - 1)
    if model.n_layer < layers:
        config = config.replace(freeze=all_settings(config).freeze * model.n_layer // layers)
    return model, config, whole / work(model, config)
