"""How well a model predicts a text: nats per token, perplexity and bits per byte, under one stated protocol."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.config import GPTConfig
from minigpt.device import autocast
from minigpt.errors import ConfigError, DataError
from minigpt.model.gpt import GPT, eval_mode

_LOGITS_AT_ONCE = 2**24  # numbers: 64 MB in float32
TOKENS_AT_ONCE = 8192  # in one forward pass, where nobody says how many sequences
UNSCORED = -100  # torch's own value for "no target here"

Progress = Callable[[int, int], None]  # how much is done, and of how much


class Readers(Protocol):
    """Several processes that read a text together; this one is number `rank` of `size`, from 0."""

    rank: int
    size: int

    def all_reduce_sum(self, figures: Tensor) -> Tensor:
        """The sum of every process's figures."""
        ...


@dataclass(frozen=True)
class Evaluation:
    """A loss and the protocol it was measured by.

    Units: `loss` nats per token; `bytes` UTF-8 bytes of the scored tokens' text, end-of-text counting none.
    """

    loss: float
    tokens: int
    bytes: int
    context: int
    stride: int

    @property
    def perplexity(self) -> float:
        """exp(loss): comparable only between models of one tokenizer."""
        return math.exp(self.loss) if self.loss < 700 else math.inf

    @property
    def bits_per_byte(self) -> float:
        """The loss over the text itself, which compares any tokenizers."""
        return self.loss * self.tokens / (math.log(2) * self.bytes) if self.bytes else math.nan


def evaluate(
    model: GPT,
    tokens: np.ndarray | list[int],
    *,
    token_lengths: np.ndarray | None = None,
    context: int | None = None,
    stride: int | None = None,
    max_tokens: int | None = None,
    batch_size: int | None = None,
    dtype: torch.dtype = torch.float32,
    readers: Readers | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """How well `model` predicts `tokens`, every token but the first scored once.

    A window of `context` tokens (default: the model's own) moves on by `stride` (default: the whole context) and
    scores what no window before it has, so that with a smaller stride every token past the first window has at
    least context - stride tokens before it. `max_tokens` reads only as many windows as hold that many tokens, evenly
    spaced and always the same. `token_lengths` (V,) are the bytes of each token, for bits per byte. `batch_size`
    windows are read at once, which changes nothing but the speed. Several `readers` share the windows between them, and
    all know the whole in the end. `progress` hears of the windows done.

    Raises: DataError for fewer than two tokens; ConfigError where context or stride do not fit the model.
    """
    context, stride = resolve_protocol(model.config, context, stride)
    stream = checked_stream(tokens)
    nats, scored, n_bytes = 0.0, 0, 0
    with eval_mode(model), torch.inference_mode():
        for batch in windows(stream, context, stride, max_tokens, batch_size, readers, progress):
            device = model.token_embedding.weight.device
            with autocast(device, dtype):
                features = model.features(batch.inputs.to(device)).flatten(0, 1)  # (B * T, C)
            targets = batch.targets.flatten()
            wanted = targets != UNSCORED
            if not wanted.all():  # the head is a large part of the work: only what is scored needs it
                features, targets = features[wanted.to(device)], targets[wanted]
            nats += _nats(model, features, targets.to(device))
            kept = targets.numpy()
            scored += len(kept)
            n_bytes += int(token_lengths[kept].sum()) if token_lengths is not None else 0
    if readers is not None:
        figures = readers.all_reduce_sum(torch.tensor([nats, scored, n_bytes], dtype=torch.float64))
        nats, scored, n_bytes = figures[0].item(), int(figures[1]), int(figures[2])
    return Evaluation(nats / scored, scored, n_bytes, context, stride)


def resolve_protocol(config: GPTConfig, context: int | None, stride: int | None) -> tuple[int, int]:
    """The context and the stride, the whole context by default.

    Raises: ConfigError where they do not fit the model.
    """
    context = config.n_positions if context is None else context
    stride = context if stride is None else stride
    if not 1 <= context <= config.n_positions:
        raise ConfigError(f"context ({context}) must be from 1 to the model's context length ({config.n_positions})")
    if not 1 <= stride <= context:
        raise ConfigError(f"stride ({stride}) must be from 1 to the context ({context})")
    return context, stride


def checked_stream(tokens: np.ndarray | list[int]) -> np.ndarray:
    """The tokens as an array of two at least.

    Raises: DataError.
    """
    stream = np.asarray(tokens)
    if len(stream) < 2:
        raise DataError(f"a text of {len(stream)} tokens cannot be evaluated; it takes at least 2")
    return stream


class Batch(NamedTuple):
    """Equally long windows of a stream: where each begins there, and each with the token behind it, (B, T + 1) int64.

    `targets` (B, T) are what is to be predicted, `UNSCORED` where an earlier window has done so.
    """

    starts: list[int]
    windows: Tensor
    targets: Tensor

    @property
    def inputs(self) -> Tensor:
        """What the model reads. Shapes: (B, T)."""
        return self.windows[:, :-1]


def windows(
    stream: np.ndarray,
    context: int,
    stride: int,
    max_tokens: int | None = None,
    batch_size: int | None = None,
    readers: Readers | None = None,
    progress: Progress | None = None,
) -> Iterator[Batch]:
    """The windows of `evaluate`, in batches."""
    n_targets = len(stream) - 1
    n_windows = max(0, -(-(n_targets - context) // stride)) + 1
    chosen = range(n_windows)
    if max_tokens is not None and (wanted := max(1, max_tokens // stride)) < n_windows:
        chosen = [i * n_windows // wanted for i in range(wanted)]  # type: ignore[assignment]
    if readers is not None:
        chosen = chosen[readers.rank :: readers.size]
    rows: list[np.ndarray] = []
    starts: list[int] = []
    done = 0
    batch_size = max(1, TOKENS_AT_ONCE // context) if batch_size is None else batch_size
    for number, index in enumerate(chosen):
        start = index * stride
        window = stream[start : start + context + 1].astype(np.int64)
        if rows and (len(rows) == batch_size or len(window) != len(rows[0])):
            yield _batch(rows, starts, context - stride)
            rows, starts, done = [], [], number
            if progress is not None:
                progress(done, len(chosen))
        rows.append(window)
        starts.append(start)
    if rows:
        yield _batch(rows, starts, context - stride)
    if progress is not None:
        progress(len(chosen), len(chosen))


def _batch(rows: list[np.ndarray], starts: list[int], overlap: int) -> Batch:
    both = torch.from_numpy(np.stack(rows))  # (B, T + 1)
    targets = both[:, 1:].clone()
    for row, start in enumerate(starts):
        targets[row, : overlap if start else 0] = UNSCORED
    return Batch(starts, both, targets)


def losses(model: GPT, features: Tensor, targets: Tensor) -> Iterator[Tensor]:
    """The loss of each target, a slice of the head's logits at a time: never (B, T, V) at once.

    Shapes: features (N, C), targets (N,) -> slices of (N,) float32, in order.
    """
    for rows, logits in sliced_logits(model, features):
        yield F.cross_entropy(logits, targets[rows], reduction="none")


def sliced_logits(model: GPT, features: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """The logits of (N, C) features, some rows at a time: which, and their (n, V).

    The head's product is in float32 whatever the features are: at GPT-2's logits of about -70 half a unit is the least
    that bfloat16 can tell apart.
    """
    head = model.token_embedding.weight.float()  # (V, C)
    slice_size = max(1, _LOGITS_AT_ONCE // model.config.vocab_size)
    for start in range(0, len(features), slice_size):
        rows = slice(start, start + slice_size)
        yield rows, F.linear(features[rows].float(), head)


def _nats(model: GPT, features: Tensor, targets: Tensor) -> float:
    """The summed loss of the targets."""
    device = features.device
    total = torch.zeros((), dtype=torch.float64 if device.type != "mps" else torch.float32, device=device)
    for some in losses(model, features, targets):
        total += some.to(total.dtype).sum()
    return total.item()
