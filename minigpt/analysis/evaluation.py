"""How well a model predicts a text: nats per token, perplexity and bits per byte, under one stated protocol."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.config import GPTConfig
from minigpt.device import autocast
from minigpt.errors import ConfigError, DataError
from minigpt.model.gpt import GPT

_LOGITS_AT_ONCE = 2**24  # numbers: 64 MB in float32


class Readers(Protocol):
    """Several processes that read a text together; this one is number `rank` of `size`, from 0."""

    rank: int
    size: int

    def add_up(self, figures: Tensor) -> Tensor:
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
    dtype: torch.dtype = torch.float32,
    readers: Readers | None = None,
) -> Evaluation:
    """How well `model` predicts `tokens`, every token but the first scored once.

    A window of `context` tokens (default: the model's own) moves on by `stride` (default: the whole context) and
    scores what no window before it has, so that with a smaller stride every token past the first window has at
    least context - stride tokens before it. `max_tokens` reads only as many windows as hold that many tokens, evenly
    spaced and always the same. `token_lengths` (V,) are the bytes of each token, for bits per byte. Several `readers`
    share the windows between them, and all know the whole in the end.

    Raises: DataError for fewer than two tokens; ConfigError where context or stride do not fit the model.
    """
    context = model.config.n_positions if context is None else context
    stride = context if stride is None else stride
    _check_protocol(model.config, context, stride)
    stream = np.asarray(tokens)
    if len(stream) < 2:
        raise DataError(f"a text of {len(stream)} tokens cannot be evaluated; it takes at least 2")
    was_training = model.training
    model.eval()
    nats, scored, n_bytes = 0.0, 0, 0
    with torch.inference_mode():
        for inputs, targets in _windows(stream, context, stride, max_tokens, readers):
            device = model.token_embedding.weight.device
            with autocast(device, dtype):
                features = model.features(inputs.to(device)).flatten(0, 1)  # (B * T, C)
            nats += _nats(model, features, targets.to(device).flatten())
            kept = targets[targets != _UNSCORED].numpy()
            scored += len(kept)
            n_bytes += int(token_lengths[kept].sum()) if token_lengths is not None else 0
    model.train(was_training)
    if readers is not None:
        figures = readers.add_up(torch.tensor([nats, scored, n_bytes], dtype=torch.float64))
        nats, scored, n_bytes = figures[0].item(), int(figures[1]), int(figures[2])
    return Evaluation(nats / scored, scored, n_bytes, context, stride)


_UNSCORED = -100  # torch's own value for "no target here"


def _check_protocol(config: GPTConfig, context: int, stride: int) -> None:
    if not 1 <= context <= config.n_positions:
        raise ConfigError(f"context ({context}) must be from 1 to the model's context length ({config.n_positions})")
    if not 1 <= stride <= context:
        raise ConfigError(f"stride ({stride}) must be from 1 to the context ({context})")


def _windows(
    stream: np.ndarray, context: int, stride: int, max_tokens: int | None, readers: Readers | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of equally long windows and their targets, (B, T) int64 each, the targets unscored where seen before."""
    n_targets = len(stream) - 1
    n_windows = max(0, -(-(n_targets - context) // stride)) + 1
    chosen = range(n_windows)
    if max_tokens is not None and (wanted := max(1, max_tokens // stride)) < n_windows:
        chosen = [i * n_windows // wanted for i in range(wanted)]  # type: ignore[assignment]
    rows: list[np.ndarray] = []
    scored_from: list[int] = []
    batch_size = max(1, 8192 // context)
    for index in chosen[readers.rank :: readers.size] if readers is not None else chosen:
        start = index * stride
        window = stream[start : start + context + 1].astype(np.int64)
        if rows and (len(rows) == batch_size or len(window) != len(rows[0])):
            yield _batch(rows, scored_from)
            rows, scored_from = [], []
        rows.append(window)
        scored_from.append(0 if index == 0 else context - stride)
    if rows:
        yield _batch(rows, scored_from)


def _batch(rows: list[np.ndarray], scored_from: list[int]) -> tuple[Tensor, Tensor]:
    windows = torch.from_numpy(np.stack(rows))  # (B, T + 1)
    targets = windows[:, 1:].clone()
    for row, start in enumerate(scored_from):
        targets[row, :start] = _UNSCORED
    return windows[:, :-1], targets


def _nats(model: GPT, features: Tensor, targets: Tensor) -> float:
    """The summed loss of the scored targets; logits are made a slice at a time, never (B, T, V) at once.

    The head's product is in float32 whatever the features are: at GPT-2's logits of about -70 half a unit is the least
    that bfloat16 can tell apart.
    """
    device, head = features.device, model.token_embedding.weight.float()  # (V, C)
    total = torch.zeros((), dtype=torch.float64 if device.type != "mps" else torch.float32, device=device)
    slice_size = max(1, _LOGITS_AT_ONCE // model.config.vocab_size)
    for start in range(0, len(targets), slice_size):
        rows = slice(start, start + slice_size)
        logits = F.linear(features[rows].float(), head)  # (slice, V)
        losses = F.cross_entropy(logits, targets[rows], ignore_index=_UNSCORED, reduction="none")
        total += losses.to(total.dtype).sum()
    return total.item()
