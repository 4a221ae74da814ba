"""The peers that the benchmarks compare minigpt with: nanoGPT, a plain transformers loop and its Trainer.

nanoGPT's train.py is a script that trains when it is imported. Its step, batches and schedule are therefore repeated
here, around the model and optimizer of the model.py in a checkout. With the same seed the losses equal train.py's.
"""

import importlib.util
import itertools
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from measuring import Point, Shape, Stopwatch
from torch import Tensor, nn

from minigpt.device import resolve_device


def nanogpt_module(checkout: Path) -> ModuleType:
    """nanoGPT's model.py."""
    spec = importlib.util.spec_from_file_location("nanogpt_model", checkout / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["nanogpt_model"] = module  # the dataclass decorator looks the module up there
    spec.loader.exec_module(module)
    return module


def nanogpt_model(module: ModuleType, shape: Shape) -> nn.Module:
    """nanoGPT's model with train.py's defaults: no biases, no dropout, GPT-2's vocabulary padded to 50304."""
    return module.GPT(
        module.GPTConfig(
            block_size=shape.context,
            vocab_size=50304 if shape.vocabulary == 50257 else shape.vocabulary,
            n_layer=shape.n_layer,
            n_head=shape.n_head,
            n_embd=shape.n_embd,
            dropout=0.0,
            bias=False,
        )
    )


def nanogpt_batch(data: Path, shape: Shape, device: torch.device) -> tuple[Tensor, Tensor]:
    """Random windows of a file of uint16 tokens, drawn as in train.py's get_batch: two (B, T) int64 tensors."""
    tokens = np.memmap(data, dtype=np.uint16, mode="r")
    length = shape.context
    starts = torch.randint(len(tokens) - length, (shape.batch,))
    x = torch.stack([torch.from_numpy(tokens[i : i + length].astype(np.int64)) for i in starts])
    y = torch.stack([torch.from_numpy(tokens[i + 1 : i + 1 + length].astype(np.int64)) for i in starts])
    if device.type == "cuda":
        return x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)
    return x, y


def nanogpt_rate(step: int, *, peak: float, steps: int) -> float:
    """train.py's get_lr: a linear warmup, then a cosine down to a tenth of the peak at `steps`.

    The warmup is the recipe's 100 steps, or a tenth of a run shorter than 1000 steps.
    """
    floor, warmup = peak / 10, min(100, steps // 10)
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    if step > steps:
        return floor
    done = (step - warmup) / max(1, steps - warmup)
    return floor + 0.5 * (1 + math.cos(math.pi * done)) * (peak - floor)


def nanogpt_steps(
    model: nn.Module,
    data: Path,
    shape: Shape,
    device: torch.device,
    *,
    rate: Callable[[int], float] = lambda _: 1e-3,
    compiled: bool = False,
) -> Iterator[Tensor]:
    """Builds the optimizer and runs train.py's steps; yields the loss, a scalar tensor, after each. bfloat16 on CUDA.

    Weight decay 0.1, betas 0.9 and 0.99, clipping at 1, as in config/train_shakespeare_char.py.
    """
    optimizer = model.configure_optimizers(0.1, rate(0), (0.9, 0.99), device.type)  # type: ignore[operator]
    run = torch.compile(model) if compiled else model
    model.train()

    def loop() -> Iterator[Tensor]:
        x, y = nanogpt_batch(data, shape, device)
        for step in itertools.count():
            for group in optimizer.param_groups:
                group["lr"] = rate(step)
            with _autocast(device):
                _, loss = run(x, y)
            x, y = nanogpt_batch(data, shape, device)  # prefetch while the GPU is busy
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if step % 10 == 0:
                loss.item()  # train.py logs at this interval, which waits for the GPU
            yield loss.detach()

    return loop()


@torch.inference_mode()
def nanogpt_nats(model: nn.Module, tokens: np.ndarray, context: int, device: torch.device) -> float:
    """The summed loss of all tokens except the first, in non-overlapping windows of `context` tokens.

    The windows are the same as in `minigpt.evaluate`; nanoGPT's model returns the mean loss of a batch.
    """
    stream = torch.from_numpy(tokens.astype(np.int64))
    inputs, targets = stream[:-1], stream[1:]
    whole = len(targets) // context * context
    windows = (part[:whole].view(-1, context).split(32) for part in (inputs, targets))
    batches = list(zip(*windows, strict=True))
    if whole < len(targets):
        batches.append((inputs[None, whole:], targets[None, whole:]))
    model.eval()
    nats = 0.0
    for x, y in batches:
        _, loss = model(x.to(device), y.to(device))
        nats += loss.item() * y.numel()
    model.train()
    return nats


def nanogpt_tokens(training: str, validation: str, *, bpe: bool) -> tuple[list[int], list[int], int, int]:
    """nanoGPT's tokens of both parts, its vocabulary size, and the number of bytes of the scored validation tokens.

    The character vocabulary is taken from the whole text, as in prepare.py; the BPE is GPT-2's.
    """
    if bpe:
        from minigpt import Tokenizer  # imported here, so that it does not count in a peer's memory

        tokenizer = Tokenizer.named("gpt2")
        ids = tokenizer.encode(validation)
        unscored = len(tokenizer.decode_bytes(ids[:1]))
        return tokenizer.encode(training), ids, 50257, len(validation.encode()) - unscored
    number = {character: i for i, character in enumerate(sorted(set(training + validation)))}
    scored = len(validation[1:].encode())
    return [number[c] for c in training], [number[c] for c in validation], len(number), scored


class NanoGPT:
    """nanoGPT's model and training loop, with a cosine schedule over `steps` steps, which may change."""

    def __init__(self, job: dict[str, Any], steps: int) -> None:
        self.steps = steps
        self.shape, self.device = Shape(**job["shape"]), resolve_device(job["device"])
        torch.manual_seed(job["seed"])
        self.model = nanogpt_model(nanogpt_module(Path(job["nanogpt"])), self.shape).to(self.device)

        def rate(step: int) -> float:
            return nanogpt_rate(step, peak=job["rate"], steps=self.steps)

        self.loop = nanogpt_steps(self.model, Path(job["train"]), self.shape, self.device, rate=rate)

    def take(self, steps: int) -> float:
        """Runs this many steps; returns the seconds they took."""
        began = time.perf_counter()
        for _ in range(steps):
            loss = next(self.loop)
        loss.item()  # waits for the device
        return time.perf_counter() - began

    def nats(self, path: str) -> float:
        """The total loss of the validation part in nats."""
        return nanogpt_nats(self.model, np.fromfile(path, np.uint16), self.shape.context, self.device)


def nanogpt_curve(job: dict[str, Any], steps: int, every: int) -> list[Point]:
    """Trains for `steps` steps; evaluates after every `every` steps and at the end."""
    run, curve, seconds = NanoGPT(job, steps), [], 0.0
    for start in range(0, steps, every):
        seconds += run.take(min(every, steps - start))
        curve.append((min(start + every, steps), seconds, run.nats(job["validation"])))
    return curve


def nanogpt_curve_within(job: dict[str, Any]) -> list[Point]:
    """Trains for `job["seconds"]` seconds, to the end of a cosine; evaluates after each quarter of them.

    The cosine's number of steps is at first that of a trial, which is not counted, and then follows the speed of all
    steps so far.
    """
    budget = job["seconds"]
    run, steps, seconds = NanoGPT(job, _nanogpt_steps_within(job)), 0, 0.0
    curve: list[Point] = []
    while seconds < budget:
        seconds += run.take(10)
        steps += 10
        run.steps = round(steps * budget / seconds)
        if seconds >= budget * (len(curve) + 1) / 4:
            curve.append((steps, seconds, run.nats(job["validation"])))
    return curve


def _nanogpt_steps_within(job: dict[str, Any]) -> int:
    """The number of steps that fit a budget in seconds, from a trial of a tenth of it, at most 10 s."""
    trial, steps, seconds = NanoGPT(job, 10**6), 0, 0.0
    trial.take(3)
    while seconds < min(10.0, 0.1 * job["seconds"]):
        seconds += trial.take(1)
        steps += 1
    return max(1, int(job["seconds"] * steps / seconds))


def measure_nanogpt(
    checkout: Path, shape: Shape, data: Path, device: torch.device, stopwatch: Callable[[], Stopwatch], compiled: bool
) -> Stopwatch:
    """Trains nanoGPT until the stopwatch, which starts after the model is built, ends the measurement."""
    torch.backends.cuda.matmul.allow_tf32 = True
    model = nanogpt_model(nanogpt_module(checkout), shape).to(device)
    clock = stopwatch()
    for _ in nanogpt_steps(model, data, shape, device, compiled=compiled):
        if clock.step():
            break
    return clock


def transformers_model(shape: Shape) -> Any:
    """transformers' GPT-2 of this shape, without dropout and without a key-value cache."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=shape.vocabulary,
        n_positions=shape.context,
        n_embd=shape.n_embd,
        n_layer=shape.n_layer,
        n_head=shape.n_head,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config)


def measure_transformers(
    shape: Shape, data: Path, device: torch.device, stopwatch: Callable[[], Stopwatch]
) -> Stopwatch:
    """A plain training loop over transformers' model, with fused AdamW, clipping and nanoGPT's batches."""
    torch.backends.cuda.matmul.allow_tf32 = True
    model = transformers_model(shape).to(device)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1, fused=True)
    context = _autocast(device)
    clock = stopwatch()
    while True:
        ids, _ = nanogpt_batch(data, shape, device)
        with context:
            loss = model(input_ids=ids, labels=ids).loss  # the model shifts the labels
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if clock.step():
            return clock


def measure_trainer(shape: Shape, data: Path, device: torch.device, stopwatch: Callable[[], Stopwatch]) -> Stopwatch:
    """Hugging Face's Trainer on the same windows, with its defaults, but without logging and saving."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    tokens = np.memmap(data, dtype=np.uint16, mode="r")

    class Windows(torch.utils.data.Dataset[dict[str, Tensor]]):
        def __len__(self) -> int:
            return len(tokens) // shape.context

        def __getitem__(self, index: int) -> dict[str, Tensor]:
            start = index * shape.context
            ids = torch.from_numpy(tokens[start : start + shape.context].astype(np.int64))
            return {"input_ids": ids, "labels": ids}

    class Timing(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.clock = stopwatch()

        def on_step_end(self, *about: Any, **_: Any) -> None:
            _, _, control = about
            control.should_training_stop = self.clock.step()

    timing = Timing()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=shape.batch,
            max_steps=10**7,
            learning_rate=1e-3,
            weight_decay=0.1,
            adam_beta2=0.99,
            max_grad_norm=1.0,
            optim="adamw_torch_fused",
            lr_scheduler_type="constant",
            use_cpu=device.type == "cpu",
            bf16=device.type == "cuda",
            tf32=True if device.type == "cuda" else None,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        Trainer(model=transformers_model(shape), args=arguments, train_dataset=Windows(), callbacks=[timing]).train()
    return timing.clock


def _autocast(device: torch.device) -> AbstractContextManager[object]:
    return torch.autocast("cuda", dtype=torch.bfloat16) if device.type == "cuda" else nullcontext()
