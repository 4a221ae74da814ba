"""An evaluation taken apart: by document, and by how much context a token had; the protocol is `evaluation`'s."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from minigpt.evaluation.perplexity import (
    UNSCORED,
    Evaluation,
    Progress,
    checked_stream,
    losses,
    resolve_protocol,
    windows,
)
from minigpt.model.gpt import GPT, eval_mode

Figures = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Breakdown:
    """The evaluation of a stream, and what it is made of.

    `nats`, `tokens` and `bytes` (D,) are sums over each document, its end of text included. `position_nats` and
    `position_tokens` (T,) are sums over every window at its positions, from 0, whether scored by it or not; they are
    empty where they were not asked for.
    """

    whole: Evaluation
    nats: Figures
    tokens: Counts
    bytes: Counts
    position_nats: Figures
    position_tokens: Counts

    def document(self, number: int) -> Evaluation:
        """One document's share of the whole, in the order of the stream."""
        tokens = int(self.tokens[number])
        loss = float(self.nats[number]) / tokens if tokens else float("nan")
        return Evaluation(loss, tokens, int(self.bytes[number]), self.whole.context, self.whole.stride)

    def position_losses(self) -> Figures:
        """The mean loss at each position of the window: after 1 token, after 2, … Shapes: (T,)."""
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
    progress: Progress | None = None,
) -> Breakdown:
    """How well `model` predicts each document of a stream, by the windows and the scoring of `evaluate`.

    A window does not begin anew with a document: where one starts, the end of the last is before it, as in training.
    An end of text that the stream begins with ends no document: it stands before the first.
    `by_position` also takes the loss of what a window has not scored, since it was scored before, into account, so that
    every position has been measured on the same text.

    Raises: DataError, ConfigError, as `evaluate`.
    """
    context, stride = resolve_protocol(model.config, context, stride)
    stream = checked_stream(tokens)
    ends = np.flatnonzero(stream[1:] == end_of_text) + 1
    n_documents = len(ends) + (len(ends) == 0 or int(ends[-1]) < len(stream) - 1)
    device = model.token_embedding.weight.device
    nats, counts, n_bytes = (np.zeros(n_documents) for _ in range(3))
    position_nats, position_counts = (np.zeros(context if by_position else 0) for _ in range(2))
    with eval_mode(model), torch.inference_mode():
        for batch in windows(stream, context, stride, batch_size=batch_size, progress=progress):
            features = model.features(batch.inputs.to(device)).flatten(0, 1)  # (B * T, C)
            scored = (batch.targets != UNSCORED).flatten()
            wanted = torch.ones_like(scored) if by_position else scored
            targets = batch.windows[:, 1:].flatten()[wanted]
            each = (
                torch.cat(list(losses(model, features[wanted.to(device)], targets.to(device)))).cpu().double().numpy()
            )
            if by_position:
                table = each.reshape(len(batch.starts), -1)  # (B, T)
                position_nats[: table.shape[1]] += table.sum(0)
                position_counts[: table.shape[1]] += len(table)
                kept = scored.numpy()
                each, targets = each[kept], targets[scored]
            where = np.array(batch.starts)[:, None] + 1 + np.arange(batch.targets.shape[1])  # (B, T), in the stream
            of = np.searchsorted(ends, where.flatten()[scored.numpy()])  # the document of each scored token
            nats += np.bincount(of, each, n_documents)
            counts += np.bincount(of, minlength=n_documents)
            n_bytes += np.bincount(of, token_lengths[targets.numpy()], n_documents)
    total = int(counts.sum())
    return Breakdown(
        whole=Evaluation(float(nats.sum()) / total, total, int(n_bytes.sum()), context, stride),
        nats=nats,
        tokens=counts.astype(np.int64),
        bytes=n_bytes.astype(np.int64),
        position_nats=position_nats,
        position_tokens=position_counts.astype(np.int64),
    )
