"""Measures how well a model predicts a text: loss in nats per token, perplexity, and bits per byte."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.config import GPTConfig
from minigpt.data.batches import UNSCORED
from minigpt.device import autocast
from minigpt.errors import ConfigError, DataError
from minigpt.model.gpt import GPT, check_module, eval_mode
from minigpt.model.logits import logits_buffer
from minigpt.threads import watch_load

_BATCH_TOKENS = 8192  # in one forward pass, unless the caller chooses
_MOST_LOGITS = 2**24  # at once: 64 MB in float32
_CACHED_LOGITS = 2**18  # that a thread of a CPU turns into losses at once, so that they stay in its cache
_LARGEST_EXPONENT = 709  # of a float: exp(710) overflows

Item = TypeVar("Item")
WindowProgress = Callable[[int, int], None]  # windows done, windows in total


@dataclass(frozen=True, kw_only=True)
class Windows:
    """The windows that move over texts, how many are evaluated together, and the most documents or examples."""

    context: int
    stride: int
    batch_size: int | None = None
    limit: int | None = None


class EvaluationWorld(Protocol):
    """Several processes that evaluate a text together; this process is `rank` of `size`, from 0.

    `is_sharded` says whether each holds only a shard of the model.
    """

    rank: int
    size: int
    is_sharded: bool

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """The sum of every process's values."""
        ...

    def in_step(self, items: Iterator[Item]) -> Iterator[Item | None]:
        """The items of this process; with a sharded model, then None while another process still has some."""
        ...


@dataclass(frozen=True)
class EvaluationResult:
    """A loss and the protocol by which it was measured.

    `tokens` are the scored ones, and `bytes` their UTF-8 bytes, of which an end-of-text has none. Unit of `loss`: nats
    per token.
    """

    loss: float
    tokens: int
    bytes: int
    context: int
    stride: int

    @property
    def perplexity(self) -> float:
        """exp(loss); comparable only between models with the same tokenizer."""
        return perplexity(self.loss)

    @property
    def bits_per_byte(self) -> float:
        """The loss per byte of text, in bits; comparable between models with different tokenizers."""
        return self.loss * self.tokens / (math.log(2) * self.bytes) if self.bytes else math.nan


def perplexity(nats: float) -> float:
    """exp of a mean loss in nats; infinite if that is too large for a float."""
    return math.inf if nats > _LARGEST_EXPONENT else math.exp(nats)


def evaluate(
    model: GPT,
    tokens: np.ndarray | list[int],
    *,
    token_lengths: np.ndarray | None = None,
    context: int | None = None,
    stride: int | None = None,
    max_tokens: int | None = None,
    scored: np.ndarray | None = None,
    batch_size: int | None = None,
    dtype: torch.dtype = torch.float32,
    world: EvaluationWorld | None = None,
    progress: WindowProgress | None = None,
) -> EvaluationResult:
    """Measures how well `model` predicts `tokens`; every token but the first is scored once.

    A window of `context` tokens (default: the model's context length) advances by `stride` tokens (default: the whole
    context). It scores the tokens that no earlier window has scored. So every token after the first window has at
    least context - stride tokens before it. `max_tokens` evaluates only evenly spaced windows, always the same ones,
    that score about that many tokens. Only tokens that are `scored`, (N,) bool, count; the others are only read.
    `token_lengths` (V,) are the bytes of each token, for bits per byte. `batch_size` windows are evaluated together; it
    affects only the speed. The processes of a `world` divide the windows, and all return the same result.

    Raises: DataError for fewer than two tokens, and if none of those read is scored; ConfigError if context or stride
    do not fit the model, and for a text instead of its tokens.
    """
    check_module(model)
    context, stride = resolve_protocol(model.config, context, stride)
    stream = token_array(tokens)
    nats, n_scored, n_bytes = 0.0, 0, 0
    watch_load()
    is_sharded = world is not None and world.is_sharded  # its gathered weights would become inference tensors
    with eval_mode(model), torch.no_grad() if is_sharded else torch.inference_mode():
        batches = sliding_windows(stream, context, stride, max_tokens, batch_size, world, progress, scored)
        for batch in batches if world is None else world.in_step(batches):
            if batch is None:  # this process is done, but a forward pass of a sharded model needs all
                device = model.token_embedding.weight.device
                model.features(torch.zeros(1, 1, dtype=torch.long, device=device))
                continue
            targets, losses = batch_losses(model, batch, batch.is_scored, dtype)
            nats += float(losses.sum())
            n_scored += len(targets)
            n_bytes += int(token_lengths[targets.numpy()].sum()) if token_lengths is not None else 0
    if world is not None:
        sums = world.all_reduce_sum(torch.tensor([nats, n_scored, n_bytes], dtype=torch.float64))
        nats, n_scored, n_bytes = sums[0].item(), int(sums[1]), int(sums[2])
    if not n_scored:
        raise DataError("no token of the evaluated text is scored; evaluate more tokens, or other roles")
    return EvaluationResult(nats / n_scored, n_scored, n_bytes, context, stride)


def resolve_protocol(config: GPTConfig, context: int | None, stride: int | None) -> tuple[int, int]:
    """The context and the stride; the default of both is the model's context length.

    Raises: ConfigError if they do not fit the model.
    """
    context = config.n_positions if context is None else context
    stride = context if stride is None else stride
    if not 1 <= context <= config.n_positions:
        raise ConfigError(f"context ({context}) must be from 1 to the model's context length ({config.n_positions})")
    if not 1 <= stride <= context:
        raise ConfigError(f"stride ({stride}) must be from 1 to the context ({context})")
    return context, stride


def token_array(tokens: np.ndarray | list[int]) -> np.ndarray:
    """The tokens as an array.

    Raises: DataError for fewer than two tokens; ConfigError for a text.
    """
    if isinstance(tokens, str):
        raise ConfigError("tokens must be token ids, not a text; give tokenizer.encode(text)")
    stream = np.asarray(tokens)
    if len(stream) < 2:
        raise DataError(f"a text of {len(stream)} tokens cannot be evaluated; it needs at least 2")
    return stream


class WindowBatch(NamedTuple):
    """Windows of a stream that have the same length.

    `starts` (B,) are their positions in the stream. `windows` (B, T + 1) int64 are their tokens, each with the next
    one. `targets` (B, T) are the tokens to predict, or UNSCORED if an earlier window has scored them or they do not
    count. `counts` (B, T) bool says which tokens to predict count, whether or not an earlier window has scored them.
    """

    starts: list[int]
    windows: Tensor
    targets: Tensor
    counts: Tensor

    @property
    def inputs(self) -> Tensor:
        """The model's input. Shapes: (B, T)."""
        return self.windows[:, :-1]

    @property
    def is_scored(self) -> Tensor:
        """Where a target is scored. Shapes: (B, T)."""
        return self.targets != UNSCORED


def sliding_windows(
    stream: np.ndarray,
    context: int,
    stride: int,
    max_tokens: int | None = None,
    batch_size: int | None = None,
    world: EvaluationWorld | None = None,
    progress: WindowProgress | None = None,
    scored: np.ndarray | None = None,
) -> Iterator[WindowBatch]:
    """The windows of `evaluate`, in batches."""
    chosen = _window_numbers(len(stream) - 1, context, stride, max_tokens, scored)
    if world is not None:
        chosen = chosen[world.rank :: world.size]
    rows: list[np.ndarray] = []
    starts: list[int] = []
    done = 0
    batch_size = max(1, _BATCH_TOKENS // context) if batch_size is None else batch_size
    for number, index in enumerate(chosen):
        start = index * stride
        window = stream[start : start + context + 1].astype(np.int64)
        if rows and (len(rows) == batch_size or len(window) != len(rows[0])):
            yield _batch(rows, starts, context - stride, scored)
            rows, starts, done = [], [], number
            if progress is not None:
                progress(done, len(chosen))
        rows.append(window)
        starts.append(start)
    if rows:
        yield _batch(rows, starts, context - stride, scored)
    if progress is not None:
        progress(len(chosen), len(chosen))


def _window_numbers(
    n_targets: int, context: int, stride: int, max_tokens: int | None, scored: np.ndarray | None
) -> Sequence[int]:
    """The numbers of the windows: all of them, or as many as score about `max_tokens`, evenly spaced.

    The latter are those that have a scored token, if any has one.
    """
    n_windows = max(0, -(-(n_targets - context) // stride)) + 1
    if max_tokens is None or (wanted := max(1, max_tokens // stride)) >= n_windows:
        return range(n_windows)
    usable: Sequence[int] = range(n_windows)
    if scored is not None:
        before = np.concatenate([[0], np.cumsum(scored)])  # (N + 1,), the scored tokens before each
        ends = np.minimum(stride * np.arange(n_windows) + context, n_targets) + 1  # of what each window scores
        starts = np.concatenate([[1], ends[:-1]])
        usable = np.flatnonzero(before[ends] > before[starts]).tolist() or usable
    wanted = min(wanted, len(usable))
    return [usable[i * len(usable) // wanted] for i in range(wanted)]


def _batch(rows: list[np.ndarray], starts: list[int], overlap: int, scored: np.ndarray | None) -> WindowBatch:
    windows = torch.from_numpy(np.stack(rows))  # (B, T + 1)
    targets = windows[:, 1:].clone()
    counts = torch.ones(targets.shape, dtype=torch.bool)
    for row, start in enumerate(starts):
        if scored is not None:
            counts[row] = torch.from_numpy(scored[start + 1 : start + windows.shape[1]])
        targets[row, : overlap if start else 0] = UNSCORED
    targets[~counts] = UNSCORED
    return WindowBatch(starts, windows, targets, counts)


def batch_losses(
    model: GPT, batch: WindowBatch, is_measured: Tensor, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """The tokens to predict where `is_measured` (B, T), and their losses in nats, float64: both (N,), on the CPU."""
    device, rows = model.token_embedding.weight.device, is_measured.flatten()
    with autocast(device, dtype):
        features = model.features(batch.inputs.to(device)).flatten(0, 1)  # (B * T, C)
    targets = batch.windows[:, 1:].flatten()
    if not rows.all():  # the head is a large part of the work: apply it to these positions only
        features, targets = features[rows.to(device)], targets[rows]
    losses = list(_target_losses(model, features, targets.to(device)))
    return targets, torch.cat(losses).cpu().double() if losses else torch.empty(0, dtype=torch.float64)


def _target_losses(model: GPT, features: Tensor, targets: Tensor) -> Iterator[Tensor]:
    """The loss of each target, in slices: all logits (N, V) together would take too much memory.

    Shapes: features (N, C), targets (N,) -> slices of (N,) float32, in order.
    """
    for rows, logits in sliced_logits(model, features):
        size = len(logits)
        if logits.device.type == "cpu":
            size = max(1, _CACHED_LOGITS * torch.get_num_threads() // logits.shape[1])
        for part, part_targets in zip(torch.split(logits, size), torch.split(targets[rows], size), strict=True):
            yield F.cross_entropy(part, part_targets, reduction="none")


def sliced_logits(model: GPT, features: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """The logits of (N, C) features in slices: the rows, and their logits (n, V) in float32, without gradients.

    The next slice overwrites the logits: new memory for each would take as long as a third of the product.
    The head always computes in float32: near GPT-2's logits of about -70, adjacent bfloat16 values are 0.5 apart.
    """
    head = model.token_embedding.weight.float()  # (V, C)
    features = features.float()
    slice_size = max(1, min(len(features), _MOST_LOGITS // model.config.vocab_size))
    buffer = logits_buffer(features, slice_size, len(head))
    for start in range(0, len(features), slice_size):
        rows = slice(start, start + slice_size)
        part = features[rows]
        yield rows, torch.mm(part, head.t(), out=buffer[: len(part)])
