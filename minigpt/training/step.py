"""One optimizer step: micro-batches, gradients, spike detection, update."""

import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from minigpt.config import TrainConfig
from minigpt.device import autocast, keep_freed_memory
from minigpt.errors import TrainingError
from minigpt.model.gpt import GPT
from minigpt.seeds import mix_seed
from minigpt.training.distributed import World, full_tensor, to_local
from minigpt.training.loss import next_token_loss
from minigpt.training.memory import checkpoint_blocks, is_out_of_memory
from minigpt.training.optimizers import build_optimizers, set_learning_rate
from minigpt.training.spike_detection import SpikeDetector


@dataclass(frozen=True)
class StepResult:
    """What came of a step. Units: loss nats per token; `norm` of the gradient before clipping; `skipped` whether the
    spike_detector dropped that gradient; `scale` what losses are multiplied by in float16, else None."""

    step: int
    rate: float
    loss: float
    norm: float
    skipped: bool
    scale: float | None = None


class Batches(Protocol):
    """Where the training text comes from: `minigpt.text.Corpus`, or random tokens where only the time counts."""

    def batch(
        self, step: int, size: int, length: int, seed: int, rows: range, noise: float, bpe_dropout: float, /
    ) -> tuple[Tensor, Tensor]:
        """Inputs and targets of some rows of a step's batch, (B, T) int64 each; `noise` of the inputs are random, and
        `bpe_dropout` of the merges that make them are left out."""


class LossModel(nn.Module):
    """A model with its loss: what runs forwards and backwards as one, on one process or several."""

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.model = model
        self.features: Callable[[Tensor], Tensor] = model.features  # or that, compiled

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The mean nats per token: (B, T) int64 twice -> ()."""
        return next_token_loss(self.features(inputs), self.model.token_embedding.weight, targets)


class TrainStep:
    """Takes optimizer steps. On CUDA a step's result is read when the next one is on its way, so that the GPU never
    waits for it to be read; elsewhere at once."""

    def __init__(
        self, model: GPT, corpus: Batches, config: TrainConfig, device: torch.device, dtype: torch.dtype, world: World
    ) -> None:
        assert config.context_length is not None
        self.corpus, self.config, self.device, self.dtype, self.world = corpus, config, device, dtype, world
        self.context, self.batch_size = config.context_length, config.sequences_per_step
        self.rows = world.rows(self.batch_size)
        self.micro_batch_size = min(config.micro_batch_size or len(self.rows), len(self.rows))
        if device.type == "cpu":
            keep_freed_memory()
        self.checkpointing = config.checkpoint_activations == "on"
        if self.checkpointing:
            checkpoint_blocks(model)
        world.shard(model, config, device)
        self.losses = LossModel(model)
        self.module = world.wrap(self.losses)
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizers = build_optimizers(model, config, dtype)
        self.scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)
        self.spike_detector = SpikeDetector(config.spike_threshold, device)
        self.notices: list[str] = []
        self._updates = 0
        self._waiting: deque[tuple[int, float, Tensor, torch.cuda.Event | None]] = deque()

    def step(self, step: int, rate: float) -> list[StepResult]:
        """Takes the step that comes after `step` steps; returns the results that are known by now, oldest first.

        Raises: TrainingError where even one sequence at a time (on several processes: a micro-batch), or the update, is
        more than the memory holds.
        """
        set_learning_rate(self.optimizers, rate)
        loss = self.world.all_reduce_sum(self._gradients(step))
        self._waiting.append(self._on_its_way(step, rate, self._update(loss)))
        return self.results(keep=1 if self.device.type == "cuda" else 0)

    def timed_step(self, step: int, wait: Callable[[], None]) -> tuple[float, float]:
        """Takes a step of rate 0; returns what its gradients took and what its update took. Units: seconds.

        `wait` returns once the device has done all it was given.
        """
        set_learning_rate(self.optimizers, 0.0)
        began = time.perf_counter()
        loss = self._gradients(step)
        wait()
        middle = time.perf_counter()
        self._update(loss)
        wait()
        return middle - began, time.perf_counter() - middle

    def results(self, keep: int = 0) -> list[StepResult]:
        """Waits for the results of the steps taken, all but the `keep` last."""
        known = []
        while len(self._waiting) > keep:
            step, rate, figures, arrived = self._waiting.popleft()
            if arrived is not None:
                arrived.synchronize()
            loss, norm, skipped, scale = figures.tolist()
            scaled = scale if self.scaler.is_enabled() else None
            known.append(StepResult(step + 1, rate, loss, norm, bool(skipped), scaled))
        return known

    def _on_its_way(
        self, step: int, rate: float, figures: Tensor
    ) -> tuple[int, float, Tensor, torch.cuda.Event | None]:
        if self.device.type != "cuda":
            return step, rate, figures, None
        host = torch.empty(figures.shape, dtype=figures.dtype, pin_memory=True)
        host.copy_(figures, non_blocking=True)
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record(torch.cuda.current_stream(self.device))
        return step, rate, host, arrived

    # Gradients.

    def _gradients(self, step: int) -> Tensor:
        """Adds up this process's gradient of the step, in micro-batches; returns its share of the mean loss, ().

        Where memory runs out on a process of its own it begins again with half as many sequences at a time, at one with
        checkpointing: the same mathematics in less memory, but that dropout is drawn for a micro-batch, and so differs.
        """
        while True:
            try:
                return self._accumulate(step)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                cause = error.with_traceback(None)  # whose frames would hold the memory
            self._make_do(cause)

    def _make_do(self, cause: RuntimeError) -> None:
        """Halves the micro-batch or, at one sequence, keeps fewer activations.

        Raises: TrainingError where nothing is left to do.
        """
        at_once = self.micro_batch_size
        self.zero_gradients()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        elif self.device.type == "mps":
            torch.mps.empty_cache()
        if self.world.size == 1 and at_once > 1:
            self.micro_batch_size = at_once // 2
            self.notices.append(
                f"{at_once} sequences at once are more than the memory of {self.device} holds: {at_once // 2} at once "
                "from here on, in more turns; the batch stays the same"
            )
        elif self.world.size == 1 and not self.checkpointing and self.config.checkpoint_activations == "auto":
            self.checkpointing = True
            checkpoint_blocks(self.losses.model)
            self.notices.append(
                f"one sequence is more than the memory of {self.device} holds: from here on activations are computed "
                "again in the backward pass, about a third more work for the same gradient"
            )
        else:
            raise TrainingError(
                f"{at_once} sequences of {self.context} tokens at once are more than the memory of {self.device} "
                "holds; give a smaller --micro-batch-size (the batch stays the same), a shorter --context-length, "
                "--checkpoint-activations on, or a smaller model"
            ) from cause

    def _accumulate(self, step: int) -> Tensor:
        self.module.train()
        total = torch.zeros((), device=self.device)
        own = [
            self.rows[start : start + self.micro_batch_size]
            for start in range(0, len(self.rows), self.micro_batch_size)
        ]
        turns = self.world.accumulation_steps(len(own))
        for turn in range(turns):
            rows = own[turn] if turn < len(own) else self.rows[:0]
            with self.world.no_sync(self.module) if turn < turns - 1 else nullcontext():
                total += self._backward(step, rows)
        return total

    def _backward(self, step: int, rows: range) -> Tensor:
        """Adds the gradient of some rows of the step's batch; returns their share of its mean loss, ().

        No rows at all are a turn in which this process only joins the others: it reads a row that counts nothing.
        """
        read = rows or self.rows[:1]
        seed, noise, dropout = self.config.seed, self.config.token_noise, self.config.bpe_dropout
        batch = self.corpus.batch(step, self.batch_size, self.context, seed, read, noise, dropout)  # (B, T) twice
        inputs, targets = (self._to_device(part) for part in batch)
        torch.manual_seed(mix_seed(seed, step, rows.start))  # the dropout of this micro-batch
        with autocast(self.device, self.dtype):
            loss = self.module(inputs, targets)  # ()
        share = loss * (len(rows) / self.batch_size)
        self.scaler.scale(share).backward()
        return share.detach()

    def _to_device(self, tensor: Tensor) -> Tensor:
        if self.device.type != "cuda":
            return tensor.to(self.device)
        return tensor.pin_memory().to(self.device, non_blocking=True)

    # Update.

    def _update(self, loss: Tensor) -> Tensor:
        """Clips the gradient, detects spikes, updates: loss () -> (4,): loss, gradient norm, skipped, loss scale.

        A gradient that is left out counts as zero: the weights still move by the momentum of the steps before, with
        Muon as far as ever. Where one under a loss scale is not finite, the scale is lowered too.
        Raises: TrainingError where the memory runs out.
        """
        try:
            return self._apply(loss)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise TrainingError(
                f"the optimizer's update is more than the memory of {self.device} holds; give a smaller --preset, or "
                "share the weights out over several devices with --devices N --sharding on"
            ) from error.with_traceback(None)

    def _apply(self, loss: Tensor) -> Tensor:
        for optimizer in self.optimizers:
            self.scaler.unscale_(optimizer)
        limit = self.config.grad_clip or math.inf
        norm = full_tensor(torch.nn.utils.clip_grad_norm_(self.parameters, limit))  # ()
        bad = self.spike_detector.judge(loss, norm)  # () bool
        if self.device.type == "cuda" or bad:  # only where asking costs a wait is the mask used unasked
            for parameter in self.parameters:
                if parameter.grad is not None:
                    to_local(parameter.grad).masked_fill_(bad, 0)
        for optimizer in self.optimizers:
            optimizer.step()
        self._updates += 1
        if self.scaler.is_enabled():  # by what `unscale_` has seen; its own `step` would ask each optimizer for itself
            self.scaler.update()
        self.zero_gradients()
        scale = self.scaler.scale(torch.ones_like(loss))
        return torch.stack([figure.to(loss.dtype) for figure in (loss, norm, bad, scale)])

    def zero_gradients(self) -> None:
        """Forgets the gradients. Those of several processes stay where they are, in the buffers that they meet in, once
        DDP has settled these in its second step: new ones would be added up beside them."""
        meets = self.world.size > 1 and not self.world.is_sharded and self._updates > 1
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=not meets)

    def compile(self) -> str | None:
        """Compiles the forward pass and tries it on the first batch; returns what that failed of, on this process or
        another, and the plain forward pass then stands again on all of them.

        Raises: TrainingError as `step`, and where it fails with the weights in parts, for which others wait.
        """
        plain, failure = self.losses.features, None
        self.losses.features = torch.compile(plain)
        try:
            with self.world.no_sync(self.module):  # no process waits for another's gradients
                self._gradients(0)
        except TrainingError:
            raise
        except Exception as error:  # whatever a compiler can raise; the plain path raises it again if it is ours
            failure = (str(error).strip().splitlines() or [type(error).__name__])[0]
            if self.world.is_sharded:
                raise TrainingError(f"torch.compile failed ({failure}); give --compile off") from error
        finally:
            self.zero_gradients()
        (failed,) = self.world.all_reduce_max([failure is not None])
        if not failed:
            return None
        self.losses.features = plain
        return failure or "on another process"
