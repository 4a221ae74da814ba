"""Breaks an evaluation down by document and by position in the window."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from minigpt.errors import DataError
from minigpt.evaluation.perplexity import (
    EvaluationResult,
    WindowProgress,
    batch_losses,
    resolve_protocol,
    sliding_windows,
    token_array,
)
from minigpt.model.gpt import GPT, eval_mode
from minigpt.model.nonfinite import check_finite

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Breakdown:
    """The evaluation of a stream of D documents, and its parts.

    `nats`, `tokens` and `bytes` (D,) are sums over each document, with its end-of-text. `position_nats` and
    `position_tokens` (T,) are sums over all windows at each position, from 0, whether or not the window scored the
    token; they are empty unless requested.
    """

    whole: EvaluationResult
    nats: Floats
    tokens: Counts
    bytes: Counts
    position_nats: Floats
    position_tokens: Counts

    def document(self, number: int) -> EvaluationResult:
        """The evaluation of one document, numbered from 0 in the order of the stream."""
        tokens = int(self.tokens[number])
        loss = float(self.nats[number]) / tokens if tokens else float("nan")
        return EvaluationResult(loss, tokens, int(self.bytes[number]), self.whole.context, self.whole.stride)

    @property
    def n_positions(self) -> int:
        """How many positions there are up to the last at which a token was measured; before it, some may have none."""
        measured = np.flatnonzero(self.position_tokens)
        return int(measured[-1]) + 1 if len(measured) else 0

    def position_losses(self) -> Floats:
        """The mean loss at each position of the window: after 1 token, after 2, … Shapes: (T,)."""
        with np.errstate(invalid="ignore"):  # a position may have no scored token
            return self.position_nats / self.position_tokens


def break_down(
    model: GPT,
    tokens: np.ndarray | list[int],
    *,
    end_of_text: int,
    token_lengths: np.ndarray,
    context: int | None = None,
    stride: int | None = None,
    batch_size: int | None = None,
    by_position: bool = False,
    scored: np.ndarray | None = None,
    start_of_text: int | None = None,
    progress: WindowProgress | None = None,
) -> Breakdown:
    """Measures how well `model` predicts each document of a stream, with the windows and scoring of `evaluate`.

    Windows do not start at documents: the model sees the end of the previous document, as in training. An end-of-text
    at the very beginning ends no document, and a `start_of_text` after the last end-of-text begins none: it counts to
    the last document. With `by_position`, the losses of tokens that an earlier window has scored are also computed, so
    that every position is measured on the same text. Only `scored` tokens count, as in `evaluate`.

    Raises: DataError, ConfigError, as `evaluate`; GenerationError if a loss is NaN or infinite.
    """
    context, stride = resolve_protocol(model.config, context, stride)
    stream = token_array(tokens)
    ends = np.flatnonzero(stream[1:] == end_of_text) + 1
    rest = stream[ends[-1] + 1 :].tolist() if len(ends) else []
    n_documents = len(ends) + (len(ends) == 0 or rest not in ([], [start_of_text]))
    nats, counts, n_bytes = (np.zeros(n_documents) for _ in range(3))
    position_nats, position_counts = (np.zeros(context if by_position else 0) for _ in range(2))
    with eval_mode(model), torch.inference_mode():
        for batch in sliding_windows(stream, context, stride, batch_size=batch_size, progress=progress, scored=scored):
            is_measured = batch.counts if by_position else batch.is_scored
            targets, measured = batch_losses(model, batch, is_measured)
            check_finite(measured, model, batch.inputs)
            losses, is_scored = measured.numpy(), batch.is_scored[is_measured].numpy()
            if by_position:
                length = batch.targets.shape[1]
                at = batch.counts.nonzero()[:, 1].numpy()  # the positions of the measured tokens in their windows
                position_nats[:length] += np.bincount(at, losses, length)
                position_counts[:length] += np.bincount(at, minlength=length)
                losses, targets = losses[is_scored], targets[is_scored]
            positions = np.array(batch.starts)[:, None] + 1 + np.arange(batch.targets.shape[1])  # (B, T), in the stream
            documents = np.searchsorted(ends, positions[batch.is_scored.numpy()])  # of each scored token
            documents = np.minimum(documents, n_documents - 1)
            nats += np.bincount(documents, losses, n_documents)
            counts += np.bincount(documents, minlength=n_documents)
            n_bytes += np.bincount(documents, token_lengths[targets.numpy()], n_documents)
    total = int(counts.sum())
    if not total:
        raise DataError("no token of the evaluated text is scored; evaluate more tokens, or other roles")
    return Breakdown(
        whole=EvaluationResult(float(nats.sum()) / total, total, int(n_bytes.sum()), context, stride),
        nats=nats,
        tokens=counts.astype(np.int64),
        bytes=n_bytes.astype(np.int64),
        position_nats=position_nats,
        position_tokens=position_counts.astype(np.int64),
    )
