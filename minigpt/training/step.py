"""One optimizer step: micro-batches, gradients, clipping, loss-spike detection, update."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from minigpt.config import TrainConfig
from minigpt.data.batches import UNSCORED
from minigpt.device import autocast, keep_freed_memory, to_device
from minigpt.errors import TrainingError, first_line_of
from minigpt.model.gpt import GPT
from minigpt.native.accelerate import accelerate
from minigpt.seeds import mix_seed
from minigpt.threads import LoadMonitor, ThreadTrials, watch_load
from minigpt.training.loss import LossModel
from minigpt.training.memory import checkpoint_blocks, is_out_of_memory
from minigpt.training.optimizers import build_optimizers, set_learning_rate
from minigpt.training.spike_detection import DivergedError, SpikeDetector
from minigpt.training.world import World, full_tensor, to_local
from minigpt.tricks.sampled_softmax import StepVocabulary, TokenSampler
from minigpt.tricks.spelling import SpellingFeatures
from minigpt.tricks.spelling_updates import SpellingAdamW

_SKIPS_OF_DIVERGENCE = 5  # skipped steps in a row that mean that training has diverged


class Batches(Protocol):
    """A source of batches: `minigpt.data.corpus.Corpus`."""

    def batch(
        self, step: int, size: int, length: int, seed: int, rows: range, noise: float, bpe_dropout: float,
        loss_on: str, /,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Inputs and targets of some rows of a step's batch, (B, T) int64 each.

        The fraction `noise` of the inputs is random; `bpe_dropout` is the probability of dropping a merge. Targets that
        are not of the turns of the role `loss_on` are UNSCORED.
        """

    def scores_all(self, loss_on: str, /) -> bool:
        """Whether no target is UNSCORED."""

    def token_counts(self, vocab_size: int) -> Tensor:
        """How often each of the first `vocab_size` ids is in a part of the training tokens, (V,) int64."""

    def spelling_features(self, vocab_size: int) -> SpellingFeatures:
        """What the spellings of the first `vocab_size` tokens have in common."""


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """Some rows of a step's batch: inputs and targets, (B, T) int64 each.

    `scored` (N,) int64 are the positions in the flattened targets that count; None if all do.
    """

    rows: range
    inputs: Tensor
    targets: Tensor
    scored: Tensor | None

    @property
    def n_scored(self) -> int:
        """The number of targets that count."""
        if not self.rows:
            return 0
        return self.targets.numel() if self.scored is None else len(self.scored)


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
            return f"loss {self.loss:.4g} is far above the recent losses"
        return f"loss {self.loss:.4g}, gradient norm {self.gradient_norm:.4g}"

    def check_divergence(self, consecutive_skips: int) -> None:
        """Raises DivergedError if too many steps in a row were skipped, or if float16 overflows at every loss scale.

        Each overflow halves the loss scale. That may happen many times in a row and is harmless until the scale is
        below 1.
        """
        if self.loss_scale is not None and self.loss_scale < 1:
            raise DivergedError(f"float16 gradients overflow at every loss scale, now {self.loss_scale:g}")
        if consecutive_skips >= _SKIPS_OF_DIVERGENCE:
            raise DivergedError(
                f"loss {self.loss:.4g}, gradient norm {self.gradient_norm:.4g}; {_SKIPS_OF_DIVERGENCE} steps in a row "
                f"were skipped at learning rate {self.learning_rate:.3g}"
            )


class TrainStep:
    """Takes optimizer steps.

    On CUDA a step's result is read after the next step was launched, so that the GPU never waits; elsewhere at once.
    """

    def __init__(
        self,
        model: GPT,
        corpus: Batches,
        config: TrainConfig,
        device: torch.device,
        dtype: torch.dtype,
        world: World,
        teacher: GPT | None = None,
    ) -> None:
        assert config.context_length is not None
        self.corpus, self.config, self.device, self.dtype, self.world = corpus, config, device, dtype, world
        self.context, self.batch_size = config.context_length, config.sequences_per_step
        self.rows = world.rows(self.batch_size)
        self.micro_batch_size = min(config.micro_batch_size or len(self.rows), len(self.rows))
        self._load = watch_load(torch.get_num_threads()) if device.type == "cpu" and world.size == 1 else None
        self._trials = None if self._load is None else ThreadTrials(self._load)
        if device.type == "cpu":
            keep_freed_memory()
            for each in (model, teacher) if teacher is not None else (model,):
                accelerate(each)
        self.recomputes_activations = config.checkpoint_activations == "on"
        if self.recomputes_activations:
            checkpoint_blocks(model)
        world.shard(model, config, device)
        self.loss_model = LossModel(model, teacher, config.distill_weight)
        self.module = world.wrap(self.loss_model)
        self.sampler: TokenSampler | None = None
        if config.samples_vocabulary(model.config.vocab_size):
            counts = corpus.token_counts(model.config.vocab_size)
            self.sampler = TokenSampler(counts, config.sampled_softmax, config.seed)
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        features = None
        if config.spelling_features:
            features = corpus.spelling_features(model.config.vocab_size)
        self.optimizers = build_optimizers(model, config, dtype, world, features)
        embedding_optimizer = self.optimizers[0]
        if isinstance(embedding_optimizer, SpellingAdamW) and world.size == 1:
            self.loss_model.sparse_gradient = embedding_optimizer.reads_sparse_gradients
        self.loss_scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)
        self.spike_detector = SpikeDetector(config.spike_threshold, model.config.vocab_size, device)
        self.notices: list[str] = []
        self._updates = 0
        self._bpe_dropout = config.bpe_dropout  # of the present step
        self._pending: deque[tuple[int, float, Tensor, torch.cuda.Event | None]] = deque()

    def step(self, step: int, learning_rate: float, bpe_dropout: float) -> list[StepResult]:
        """Takes the step after `step` steps; returns the results that are known by now, oldest first.

        Raises: TrainingError if a micro-batch of one sequence (with several processes: any micro-batch) or the update
        runs out of memory.
        """
        set_learning_rate(self.optimizers, learning_rate)
        self._bpe_dropout = bpe_dropout
        with self._threads(self._trials):
            loss, n_scored = self._compute_gradients(step)
            figures = self._update(self.world.all_reduce_sum(loss), n_scored)
            self._pending.append(self._copy_to_host(step, learning_rate, figures))
        return self.results(keep=1 if self.device.type == "cuda" else 0)

    def timed_step(self, step: int, wait: Callable[[], None]) -> tuple[float, float]:
        """Takes a step with learning rate 0; returns the seconds that its gradients and its update took.

        `wait` returns when the device has finished its work.
        """
        set_learning_rate(self.optimizers, 0.0)
        with self._threads(self._load):
            started = time.perf_counter()
            loss, n_scored = self._compute_gradients(step)
            wait()
            middle = time.perf_counter()
            self._update(
                loss, None if n_scored is None else max(1, n_scored)
            )  # a step that scores nothing takes as long
            wait()
            return middle - started, time.perf_counter() - middle

    def _threads(self, source: LoadMonitor | ThreadTrials | None) -> AbstractContextManager[None]:
        """A context for a step: with a budget in minutes, `source` chooses how many threads compute.

        The number of threads changes how sums are rounded. A run with a budget in steps or epochs is to end with the
        same weights each time, so it keeps its threads.
        """
        if source is None or self.config.minutes is None:
            return nullcontext()
        return source.limited_threads()

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

    @property
    def feature_vectors(self) -> Tensor | None:
        """The shape of the vectors of spelling features, (F, C) without memory; None if there are none."""
        optimizer = self.optimizers[0]
        if not isinstance(optimizer, SpellingAdamW):
            return None
        return torch.empty(optimizer.n_features, optimizer.embedding.shape[1], device="meta")

    # Gradients.

    def _compute_gradients(self, step: int) -> tuple[Tensor, int | None]:
        """Accumulates this process's gradients of the step; returns its share of the mean loss, ().

        The second value is the number of targets that all processes score; None if all targets are scored.
        When a single process runs out of memory, it tries again with half the micro-batch, and at one sequence with
        checkpointed activations. The mathematics is the same, but dropout differs: it is drawn for each micro-batch.
        """
        while True:
            try:
                return self._accumulate(step)
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
            checkpoint_blocks(self.loss_model.model)
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

    def _accumulate(self, step: int) -> tuple[Tensor, int | None]:
        self.module.train()
        total = torch.zeros((), device=self.device)
        micro_batches: Iterable[MicroBatch] = (
            self._read(step, self.rows[start : start + self.micro_batch_size])
            for start in range(0, len(self.rows), self.micro_batch_size)
        )
        n_scored = None
        if not self.corpus.scores_all(self.config.loss_on):
            # How many targets are scored is known only when all are read.
            micro_batches = list(micro_batches)
            own = sum(batch.n_scored for batch in micro_batches)
            n_scored = int(self.world.all_reduce_sum(torch.tensor(own)))  # on the CPU, without waiting for the GPU
        accumulation_steps = -(-len(self.rows) // self.micro_batch_size)
        if self.world.is_sharded:  # all processes communicate in every forward pass, so all need as many steps
            accumulation_steps = int(self.world.all_reduce_max([accumulation_steps])[0])
        corrections = None if self.sampler is None else self.sampler.corrections(step)  # (V,)
        batches = iter(micro_batches)
        for number in range(accumulation_steps):
            # Without rows, this process only takes part in the communication: it computes one row with weight 0.
            batch = next(batches, None) or self._read(step, self.rows[:0])
            with self.world.no_sync(self.module) if number < accumulation_steps - 1 else nullcontext():
                total += self._backward(step, batch, n_scored, corrections)
        return total, n_scored

    def _read(self, step: int, rows: range) -> MicroBatch:
        """Some rows of the step's batch; without rows, one row that does not count."""
        read, config = rows or self.rows[:1], self.config
        inputs, targets = self.corpus.batch(
            step, self.batch_size, self.context, config.seed, read, config.token_noise, self._bpe_dropout,
            config.loss_on,
        )  # (B, T) twice  # fmt: skip
        scored = None if self.corpus.scores_all(config.loss_on) else (targets.flatten() != UNSCORED).nonzero().flatten()
        return MicroBatch(rows, inputs, targets, scored)

    def _backward(self, step: int, batch: MicroBatch, n_scored: int | None, corrections: Tensor | None) -> Tensor:
        """Adds the gradient of a micro-batch; returns its share of the step's mean loss, ().

        `n_scored` is the number of scored targets of the step; None if all are scored. `corrections` (V,) are those
        of the step's sample of the vocabulary, if there is one.
        """
        inputs, targets = to_device(batch.inputs, self.device), to_device(batch.targets, self.device)
        scored = None if batch.scored is None else to_device(batch.scored, self.device)
        vocabulary = None
        if corrections is not None:
            # On the CPU, because the number of its tokens would have to be read from the device.
            own = StepVocabulary.of(batch.inputs, batch.targets, corrections, batch.scored)
            vocabulary = own.to(self.device)
        seed = mix_seed(self.config.seed, step, batch.rows.start)  # of the dropout of this micro-batch
        if self.device.type == "cpu":
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)  # for every kind of device, which takes half a millisecond
        with autocast(self.device, self.dtype):
            loss = self.module(inputs, targets, scored, vocabulary)  # ()
        weight = len(batch.rows) / self.batch_size if n_scored is None else batch.n_scored / max(1, n_scored)
        share = loss * weight
        self.loss_scaler.scale(share).backward()
        return share.detach()

    # Update.

    def _update(self, loss: Tensor, n_scored: int | None) -> Tensor:
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
            self.loss_model.compile_forward()
            with self.world.no_sync(self.module):
                self._compute_gradients(0)
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
        self.loss_model.restore_plain()
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
