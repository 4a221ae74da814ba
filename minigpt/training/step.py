"""One optimizer step: gradient accumulation, clipping, loss-spike detection, update."""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from minigpt.config import TrainConfig
from minigpt.device import autocast
from minigpt.errors import TrainingError, first_line_of
from minigpt.seeds import mix_seed
from minigpt.training.memory import checkpoint_blocks, is_out_of_memory
from minigpt.training.spike_detection import DivergedError, SpikeDetector
from minigpt.training.step_parts import MicroBatch, StepParts
from minigpt.training.world import full_tensor, to_local
from minigpt.units import shown_loss

_SKIPS_OF_DIVERGENCE = 5  # skipped steps in a row that mean that training has diverged


@dataclass(frozen=True)
class StepResult:
    """The measurements of one step. `step` counts from 1.

    Units: `loss` nats per token, NaN if none is scored; `gradient_norm` before clipping. `loss_scale` multiplies
    float16 losses, else None.
    """

    step: int
    learning_rate: float
    loss: float
    gradient_norm: float
    skipped: bool
    loss_scale: float | None = None

    @property
    def overflowed(self) -> bool:
        """Whether only the gradient is infinite, since it was too large for its loss scale."""
        return self.loss_scale is not None and math.isfinite(self.loss) and not math.isfinite(self.gradient_norm)

    @property
    def skip_reason(self) -> str:
        """Why the step was skipped, for the user."""
        if math.isfinite(self.loss) and math.isfinite(self.gradient_norm):
            return f"loss {shown_loss(self.loss)} is far above the recent losses"
        return f"loss {shown_loss(self.loss)}, gradient norm {self.gradient_norm:.4g}"

    def check_divergence(self, consecutive_skips: int) -> None:
        """Raises DivergedError if too many steps in a row were skipped, or if float16 overflows at every loss scale.

        Each overflow halves the loss scale. That may happen many times in a row and is harmless until the scale is
        below 1.
        """
        if self.loss_scale is not None and self.loss_scale < 1:
            raise DivergedError(f"float16 gradients overflow at every loss scale, now {self.loss_scale:g}")
        if consecutive_skips >= _SKIPS_OF_DIVERGENCE:
            raise DivergedError(
                f"loss {shown_loss(self.loss)}, gradient norm {self.gradient_norm:.4g}; {_SKIPS_OF_DIVERGENCE} steps "
                f"in a row were skipped at learning rate {self.learning_rate:.3g}"
            )


class TrainStep:
    """Takes optimizer steps.

    On CUDA a step's result is read after the next step was launched, so that the GPU never waits; elsewhere at once.
    """

    def __init__(self, parts: StepParts, config: TrainConfig, device: torch.device, dtype: torch.dtype) -> None:
        assert config.context_length is not None
        self.parts, self.config, self.device, self.dtype = parts, config, device, dtype
        self.model, self.world, self.optimizers = parts.model, parts.world, parts.optimizers
        self.context, self.batch_size = config.context_length, config.sequences_per_step
        self.rows = self.world.rows(self.batch_size)
        self.micro_batch_size = min(config.micro_batch_size or len(self.rows), len(self.rows))
        self.recomputes_activations = config.checkpoint_activations == "on"
        self.module = self.world.wrap(parts.loss)
        self.parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.loss_scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)
        self.spike_detector = SpikeDetector(config.spike_threshold, self.model.config.vocab_size, device)
        self.notices = parts.notices
        self._updates = 0
        self._pending: deque[tuple[int, float, Tensor, torch.cuda.Event | None]] = deque()

    def step(self, step: int, learning_rate: float, height: float = 1.0) -> list[StepResult]:
        """Takes the step after `step` steps; returns the results that are known by now, oldest first.

        `height` is that of the learning rate's schedule, from 1 to 0, which `Batches.read` gets.
        Raises: TrainingError if a micro-batch of one sequence (with several processes: any micro-batch) or the update
        runs out of memory.
        """
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate
        with self.parts.context():
            loss, n_scored = self.compute_gradients(step, height)
            figures = self.update(self.world.all_reduce_sum(loss), n_scored)
            self._pending.append(self._copy_to_host(step, learning_rate, figures))
        return self.results(keep=1 if self.device.type == "cuda" else 0)

    def results(self, keep: int = 0) -> list[StepResult]:
        """Waits for the results of all steps but the last `keep`, and returns those not returned yet."""
        known = []
        while len(self._pending) > keep:
            step, learning_rate, figures, copied = self._pending.popleft()
            if copied is not None:
                copied.synchronize()
            loss, gradient_norm, skipped, scale = figures.tolist()
            loss_scale = scale if self.loss_scaler.is_enabled() else None
            known.append(StepResult(step + 1, learning_rate, loss, gradient_norm, bool(skipped), loss_scale))
        return known

    def _copy_to_host(
        self, step: int, learning_rate: float, figures: Tensor
    ) -> tuple[int, float, Tensor, torch.cuda.Event | None]:
        if self.device.type != "cuda":
            return step, learning_rate, figures, None
        host = torch.empty(figures.shape, dtype=figures.dtype, pin_memory=True)
        host.copy_(figures, non_blocking=True)
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        copied.record(torch.cuda.current_stream(self.device))
        return step, learning_rate, host, copied

    # Gradients.

    def compute_gradients(self, step: int, height: float = 1.0) -> tuple[Tensor, int | None]:
        """Accumulates this process's gradients of the step; returns its share of the mean loss, ().

        The second value is the number of targets that all processes score; None if all targets are scored.
        When a single process runs out of memory, it tries again with half the micro-batch, and at one sequence with
        checkpointed activations. The mathematics is the same, but dropout differs: it is drawn for each micro-batch.
        """
        while True:
            try:
                return self._accumulate(step, height)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                cause = error.with_traceback(None)  # its frames would keep the memory
            self._reduce_memory(cause)

    def _reduce_memory(self, cause: RuntimeError) -> None:
        """Halves the micro-batch or, at one sequence, checkpoints activations.

        Raises: TrainingError if neither is possible.
        """
        size = self.micro_batch_size
        self.zero_gradients()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        elif self.device.type == "mps":
            torch.mps.empty_cache()
        if self.world.size == 1 and size > 1:
            self.micro_batch_size = size // 2
            self.notices.append(
                f"out of memory on {self.device} with a micro-batch of {size} sequences: reduced it to {size // 2}; "
                "the batch size stays the same"
            )
        elif self.world.size == 1 and not self.recomputes_activations and self.config.checkpoint_activations == "auto":
            self.recomputes_activations = True
            checkpoint_blocks(self.model)
            self.notices.append(
                f"out of memory on {self.device} with a micro-batch of one sequence: activations are recomputed in the "
                "backward pass from now on, which takes about a third longer and gives the same gradient"
            )
        else:
            remedies = ["a smaller --micro-batch-size (the batch size stays the same)"] if size > 1 else []
            remedies.append("a shorter --context-length")
            if not self.recomputes_activations:
                remedies.append("--checkpoint-activations on")
            raise TrainingError(
                f"out of memory on {self.device} with a micro-batch of {size} x {self.context} tokens; give "
                f"{', '.join(remedies)}{',' if len(remedies) > 1 else ''} or a smaller model"
            ) from cause

    def _accumulate(self, step: int, height: float) -> tuple[Tensor, int | None]:
        self.module.train()
        total = torch.zeros((), device=self.device)
        size, own = self.micro_batch_size, len(self.rows)
        read = (self._read(step, self.rows[start : start + size], height) for start in range(0, own, size))
        micro_batches: Iterable[tuple[range, MicroBatch]] = read
        n_scored = None
        if not self.parts.batches.scores_all:  # how many targets count is known only when all are read
            micro_batches = list(read)
            own_scored = torch.tensor(sum(batch.n_scored for _, batch in micro_batches))
            n_scored = int(self.world.all_reduce_sum(own_scored))  # on the CPU, without waiting for the GPU
        accumulation_steps = -(-own // size)
        if self.world.is_sharded:  # all processes communicate in every forward pass, so all need as many steps
            accumulation_steps = int(self.world.all_reduce_max([accumulation_steps])[0])
        batches = iter(micro_batches)
        for number in range(accumulation_steps):
            rows, batch = next(batches, None) or self._read(step, self.rows[:0], height)
            counted = batch.n_scored if rows else 0
            weight = len(rows) / self.batch_size if n_scored is None else counted / max(1, n_scored)
            with self.world.no_sync(self.module) if number < accumulation_steps - 1 else nullcontext():
                total += self._backward(step, rows.start, batch, weight)
        return total, n_scored

    def _read(self, step: int, rows: range, height: float) -> tuple[range, MicroBatch]:
        """Some rows of the step's batch. Without rows, a process only takes part in the communication, by one row."""
        return rows, self.parts.batches.read(step, rows or self.rows[:1], height)

    def _backward(self, step: int, first_row: int, batch: MicroBatch, weight: float) -> Tensor:
        """Adds `weight` times the gradient of a micro-batch; returns its share of the step's mean loss, ()."""
        arguments = batch.arguments(self.device)
        seed = mix_seed(self.config.seed, step, first_row)  # of the dropout of this micro-batch
        if self.device.type == "cpu":
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)  # for every kind of device, which takes half a millisecond
        with autocast(self.device, self.dtype):
            loss = self.module(*arguments)  # ()
        share = loss * weight
        self.loss_scaler.scale(share).backward()
        return share.detach()

    # Update.

    def update(self, loss: Tensor, n_scored: int | None) -> Tensor:
        """Clips the gradient, detects spikes, updates: loss () -> (4,): loss, gradient norm, skipped, loss scale.

        A step that scores no target (`n_scored` is 0) changes nothing, and the loss that it returns is NaN.
        A skipped gradient counts as zero: the weights still move by the momentum of earlier steps, with Muon by the
        full length of an update. If a float16 gradient is not finite, the loss scale is lowered too.
        Raises: TrainingError if the update runs out of memory.
        """
        try:
            return self._apply(loss, n_scored)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise TrainingError(
                f"out of memory on {self.device} in the optimizer's update; give a smaller --preset, or shard the "
                "weights over several devices with --devices N --sharding on"
            ) from error.with_traceback(None)

    def _apply(self, loss: Tensor, n_scored: int | None) -> Tensor:
        self._updates += 1
        if n_scored == 0:
            self.zero_gradients()
            zero = torch.zeros_like(loss)
            return torch.stack([torch.full_like(loss, torch.nan), zero, zero, self._scale(loss)])
        for optimizer in self.optimizers:
            self.loss_scaler.unscale_(optimizer)
        gradient_norm = clip_gradients(self.parameters, self.config.grad_clip, is_sharded=self.world.is_sharded)
        skip = self.spike_detector.observe(loss, gradient_norm)  # () bool
        if self.device.type == "cuda" or skip:  # on CUDA, reading `skip` would wait for the GPU
            zero_if(skip, local_gradients(self.parameters))
        for optimizer in self.optimizers:
            optimizer.step()
        if self.loss_scaler.is_enabled():  # GradScaler.step would check each optimizer separately
            self.loss_scaler.update()
        self.zero_gradients()
        return torch.stack([figure.to(loss.dtype) for figure in (loss, gradient_norm, skip, self._scale(loss))])

    def _scale(self, loss: Tensor) -> Tensor:
        """The factor of float16 losses, () like the loss; 1 for other dtypes."""
        scale: Tensor = self.loss_scaler.scale(torch.ones_like(loss))
        return scale

    def zero_gradients(self) -> None:
        """Clears the gradients.

        DDP reduces them in buckets that are final after its second step. From then on they are zeroed in place, since
        new gradients would be allocated outside the buckets.
        """
        in_buckets = self.world.size > 1 and not self.world.is_sharded and self._updates > 1
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=not in_buckets)

    # Compilation.

    def compile(self) -> str | None:
        """Compiles the forward pass and tries it on the first batch.

        If that fails on any process, all keep the plain forward pass, and the reason is returned.
        Raises: TrainingError as `step`, and if it fails with sharded weights, for which other processes wait.
        """
        failure = None
        try:
            self.parts.loss.compile_forward()
            with self.world.no_sync(self.module):
                self.compute_gradients(0)
        except TrainingError:
            raise
        except Exception as error:  # a compiler can raise anything; the plain pass raises it again if it is ours
            failure = first_line_of(error)
            if self.world.is_sharded:
                raise TrainingError(f"torch.compile failed ({failure}); give --compile off") from error
        finally:
            self.zero_gradients()
        (failed,) = self.world.all_reduce_max([failure is not None])
        if not failed:
            return None
        self.parts.loss.restore_plain()
        return failure or "on another process"


def local_gradients(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """What this process has of the parameters' gradients, in their own memory; of a sparse one, its rows."""
    gradients = []
    for parameter in parameters:
        if parameter.grad is None:
            continue
        if parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()  # adds rows of several micro-batches
        gradients.append(parameter.grad.values() if parameter.grad.is_sparse else to_local(parameter.grad))
    return gradients


def zero_if(skip: Tensor, gradients: Sequence[Tensor]) -> None:
    """Zeroes gradients, NaN and infinite ones too, if `skip` () is true; a GPU finds that out by itself.

    The bits of any number times 0 are those of 0.0, so a few kernels for many tensors do it: `masked_fill_` is one for
    each tensor.
    """
    for dtype in (torch.int32, torch.int16):
        bits = [gradient.view(dtype) for gradient in gradients if gradient.element_size() == dtype.itemsize]
        if bits:
            torch._foreach_mul_(bits, (~skip).to(dtype))


def clip_gradients(parameters: Sequence[nn.Parameter], max_norm: float, *, is_sharded: bool) -> Tensor:
    """Scales the gradients to the norm `max_norm` if they exceed it; returns the norm before, (). 0 does not clip.

    torch's `clip_grad_norm_` multiplies in any case, often by 1, so that a GPU need not wait for the norm. A CPU saves
    that: up to a tenth of a small model's step.
    """
    max_norm = max_norm or math.inf
    if is_sharded or parameters[0].device.type != "cpu":
        return full_tensor(torch.nn.utils.clip_grad_norm_(parameters, max_norm))
    gradients = local_gradients(parameters)
    norm = torch.nn.utils.get_total_norm(gradients)
    if not norm + 1e-6 <= max_norm:  # torch adds it too; NaN is not smaller
        torch._foreach_mul_(gradients, max_norm / (norm + 1e-6))
    return norm
