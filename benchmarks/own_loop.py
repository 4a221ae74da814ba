"""minigpt's training loop as the benchmarks time it, and the bare loop it is compared with."""

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from measuring import Shape, Stopwatch, print_progress

from minigpt import GPT, Corpus, TrainConfig, train
from minigpt.device import autocast, resolve_device, resolve_dtype
from minigpt.training.events import Notice, Step
from minigpt.training.step_parts import build_step_parts


def random_corpus(data: Path, vocabulary: int) -> Corpus:
    """A minigpt corpus made from a file of uint16 tokens, without validation data and without a real tokenizer."""
    return Corpus(
        path=data.parent,
        tokenizer=SimpleNamespace(vocab_size=vocabulary),  # type: ignore[arg-type]
        train=np.memmap(data, dtype=np.uint16, mode="r"),
        validation=np.empty(0, np.uint16),
        train_bytes=0,
        validation_bytes=0,
        n_documents=1,
        held_out="nothing",
        validation_fraction=0.0,
        sources=(),
        skipped=(),
        source_hash="",
        fingerprint="",
    )


def minigpt_parts(shape: Shape, device: str, **options: Any) -> tuple[GPT, TrainConfig]:
    """The model, and settings for a loop that only trains: no evaluations, samples or saves.

    Its budget is in steps, unless `options` give minutes.
    """
    never = 10**9
    torch.manual_seed(1)
    model = GPT(shape.config)
    length: dict[str, Any] = {
        "steps": None if "minutes" in options else never,
        "eval_every": never,
        "save_every": never,
        "sample_every": 0,
        "patience": 0,
    }
    batch: dict[str, Any] = {"batch_size": shape.batch, "context_length": shape.context}
    return model, TrainConfig(device=device, **length, **batch, **options)


def minigpt_steps(
    model: GPT, config: TrainConfig, data: Path, on_notice: Callable[[str], object] = print_progress
) -> Iterator[None]:
    """Runs minigpt's training loop; yields after every step. Passes on what it reports, as that it cannot compile."""
    for event in train(model, random_corpus(data, model.config.vocab_size), config):
        if isinstance(event, Step):
            yield
        elif isinstance(event, Notice):
            on_notice(event.text)


def measure_minigpt(
    shape: Shape,
    data: Path,
    device: torch.device,
    stopwatch: Callable[[], Stopwatch],
    on_notice: Callable[[str], object] = print_progress,
    **options: Any,
) -> Stopwatch:
    """Trains minigpt until the stopwatch, which starts after the model is built, ends the measurement."""
    model, config = minigpt_parts(shape, str(device), **options)
    clock = stopwatch()
    for _ in minigpt_steps(model, config, data, on_notice):
        if clock.step():
            break
    return clock


def bare_steps(model: GPT, config: TrainConfig, data: Path) -> Iterator[None]:
    """Repeats forward, backward, clipping and update on one batch, and nothing else; yields after every step."""
    device = resolve_device(config.device)
    dtype = resolve_dtype(config.dtype, device)
    model = model.to(device)
    model.train()
    corpus = random_corpus(data, model.config.vocab_size)
    parts = build_step_parts(model, corpus, config, dtype)
    if device.type == "cuda":
        parts.loss.compile_forward()
    optimizers, parameters = parts.optimizers, list(model.parameters())
    assert config.context_length is not None  # `minigpt_parts` gives it
    x, y = (part.to(device) for part in corpus.batch(0, config.batch_size, config.context_length, 1))
    while True:
        with autocast(device, dtype):
            loss = parts.loss(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, config.grad_clip)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        yield


def measure_outside(
    shape: Shape, data: Path, device: torch.device, seconds: float, warmup: int, synchronize: Callable[[], object]
) -> dict[str, float]:
    """The fraction of a step that minigpt's loop spends outside a bare step: the median over pairs of timed blocks."""
    loops = []
    for steps in (minigpt_steps, bare_steps):
        loops.append(steps(*minigpt_parts(shape, str(device)), data))

    def timed(loop: Iterator[None], count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            next(loop)
        synchronize()
        return time.perf_counter() - began

    for loop in loops:
        timed(loop, max(2, warmup))
    block = max(1, round(min(0.2, seconds / 10) / timed(loops[1], 1)))  # steps
    pairs: list[dict[int, float]] = []
    deadline = time.perf_counter() + seconds
    while len(pairs) < 5 or time.perf_counter() < deadline:
        order = (0, 1) if len(pairs) % 2 else (1, 0)
        pairs.append({which: timed(loops[which], block) for which in order})
    ratio = statistics.median(pair[1] / pair[0] for pair in pairs)
    return {"outside": 1 - ratio, "pairs": len(pairs), "steps_per_pair": block}
