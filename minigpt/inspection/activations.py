"""What a model computes while it reads a text, as arrays: attention, every layer's guess, norms. It draws nothing."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from minigpt.errors import ConfigError
from minigpt.evaluation.perplexity import sliced_logits
from minigpt.model.gpt import GPT, Block, eval_mode


@dataclass(frozen=True)
class Predictions:
    """What is said to come behind each position, and how well that fits what came.

    Shapes: `top_ids` (int64) and `top_logprobs` (..., T, k), the likeliest first; (..., T) `entropy` of the whole
    distribution and, of the token that came, `logprobs` and `ranks` (int64, 0 for the likeliest). Behind the last
    position nothing came: NaN and -1.
    Units: nats.
    """

    top_ids: Tensor
    top_logprobs: Tensor
    entropy: Tensor
    logprobs: Tensor
    ranks: Tensor

    def __getitem__(self, layer: int) -> "Predictions":
        """Those of one layer, where the first axis is layers."""
        return Predictions(*(part[layer] for part in vars(self).values()))


@dataclass(frozen=True)
class Inspection:
    """A text as the model saw it, every tensor float32 on the CPU.

    `attention` (L, H, T, T): row t says how much position t takes from each; rows sum to one, nothing stands above the
    diagonal. `lens`, predictions of shape (L, T): what each block's output would say if it were the last, through the
    final norm and the head; the last layer's is the model's own.
    Norms, each a vector's length: `token_norms` and `position_norms` (T,) of the two embeddings; (L, T)
    `attention_norms` and `mlp_norms` of what a block's halves add, `residual_norms` of the stream behind it.
    Source: nostalgebraist 2020, "interpreting GPT: the logit lens".
    """

    ids: Tensor
    attention: Tensor
    lens: Predictions
    token_norms: Tensor
    position_norms: Tensor
    attention_norms: Tensor
    mlp_norms: Tensor
    residual_norms: Tensor

    @property
    def predictions(self) -> Predictions:
        """The model's own, (T,)."""
        return self.lens[-1]


def predict(model: GPT, ids: Sequence[int] | Tensor, *, top: int = 10) -> Predictions:
    """What the model says comes behind each of `ids` (T,), with the `top` likeliest tokens.

    Raises: ConfigError for no ids, more than the context holds, or some outside the vocabulary.
    """
    row = _checked(model, ids)
    with eval_mode(model), torch.no_grad():
        return _read_out(model, model.features(row[None])[0], row, top)


def inspect(model: GPT, ids: Sequence[int] | Tensor, *, top: int = 10) -> Inspection:
    """Everything the model computes while it reads `ids` (T,) that can be looked at.

    It takes 4 · L · H · T² bytes for the attention.
    Raises: ConfigError for no ids, more than the context holds, or some outside the vocabulary.
    """
    row = _checked(model, ids)
    with eval_mode(model), torch.no_grad():
        x = model.embed(row[None])  # (1, T, C)
        maps, attended, transformed, residual, lens = [], [], [], [], []
        for block in model.blocks:
            assert isinstance(block, Block)
            y, weights = block.attention.forward_with_weights(block.attention_norm(x))  # (1, T, C), (1, H, T, T)
            x = x + y
            z = block.mlp(block.mlp_norm(x))  # (1, T, C)
            x = x + z
            maps.append(weights[0].float().cpu())
            attended.append(_lengths(y[0]))
            transformed.append(_lengths(z[0]))
            residual.append(_lengths(x[0]))
            lens.append(_read_out(model, model.final_norm(x)[0], row, top))
        return Inspection(
            ids=row.cpu(),
            attention=torch.stack(maps),  # (L, H, T, T)
            lens=Predictions(*(torch.stack(parts) for parts in zip(*(vars(p).values() for p in lens), strict=True))),
            token_norms=_lengths(model.token_embedding.weight[row]),
            position_norms=_lengths(model.position_embedding.weight[: len(row)]),
            attention_norms=torch.stack(attended),
            mlp_norms=torch.stack(transformed),
            residual_norms=torch.stack(residual),
        )


def mean_bits(
    predictions: Predictions, ids: Sequence[int], token_lengths: np.ndarray
) -> tuple[float | None, float | None]:
    """How surprising a text was, per token and per byte, all but the first token counted; None where there is none.

    Shapes: predictions (T,), ids (T,); `token_lengths` (V,), the bytes of each token the tokenizer knows.
    Units: bits.
    """
    bits = -float(predictions.logprobs[:-1].double().sum()) / math.log(2)
    n_bytes = sum(int(token_lengths[id]) for id in ids[1:] if id < len(token_lengths))
    return (bits / (len(ids) - 1) if len(ids) > 1 else None), (bits / n_bytes if n_bytes else None)


def _checked(model: GPT, ids: Sequence[int] | Tensor) -> Tensor:
    """The ids as a row on the model's device."""
    row = torch.as_tensor(ids, dtype=torch.int64, device=model.token_embedding.weight.device)  # (T,)
    if row.dim() != 1 or len(row) == 0:
        raise ConfigError(f"ids of shape {tuple(row.shape)} cannot be inspected; give one row (T,) of at least one")
    if row.min() < 0 or row.max() >= model.config.vocab_size:
        raise ConfigError(f"ids must be from 0 to {model.config.vocab_size - 1}, the model's vocabulary")
    return row


def _lengths(x: Tensor) -> Tensor:
    """The vectors' lengths: (T, C) -> (T,)."""
    return x.float().norm(dim=-1).cpu()


def _read_out(model: GPT, features: Tensor, ids: Tensor, top: int) -> Predictions:
    """What the head makes of features (T, C), beside the ids (T,); logits are made a slice of positions at a time."""
    following = ids.roll(-1)
    slices = [
        _describe(logits.log_softmax(dim=-1), following[rows], top) for rows, logits in sliced_logits(model, features)
    ]
    joined = Predictions(*(torch.cat(parts).cpu() for parts in zip(*slices, strict=True)))
    joined.logprobs[-1], joined.ranks[-1] = torch.nan, -1  # what follows the last was rolled round from the first
    return joined


def _describe(logprobs: Tensor, following: Tensor, top: int) -> tuple[Tensor, ...]:
    """The fields of `Predictions` for distributions (T, V) and the tokens that came, (T,)."""
    likeliest = logprobs.topk(min(top, logprobs.shape[-1]), dim=-1)  # (T, k)
    actual = logprobs.gather(1, following[:, None])  # (T, 1)
    entropy = torch.special.entr(logprobs.exp()).sum(dim=-1)
    return likeliest.indices, likeliest.values, entropy, actual[:, 0], (logprobs > actual).sum(dim=-1)
