"""Collects what a model computes for a text as arrays: attention weights, every layer's prediction, and norms."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from minigpt.errors import ConfigError
from minigpt.evaluation.perplexity import sliced_logits
from minigpt.model.gpt import GPT, check_module, eval_mode
from minigpt.units import count

_PASSAGE_TOKENS = 96


@dataclass(frozen=True)
class Predictions:
    """The predicted next token at each position, and how well it fits the actual next token.

    | field                       | shape       | value                                                              |
    |-----------------------------|-------------|--------------------------------------------------------------------|
    | `top_ids`, `top_logprobs`   | (..., T, k) | the k most likely next tokens (int64), the most likely first       |
    | `entropy`                   | (..., T)    | entropy of the whole distribution                                  |
    | `logprobs`                  | (..., T)    | log-probability of the actual next token; NaN at the last position |
    | `ranks`                     | (..., T)    | its rank (int64, 0 for the most likely); -1 at the last position   |

    Units: nats.
    """

    top_ids: Tensor
    top_logprobs: Tensor
    entropy: Tensor
    logprobs: Tensor
    ranks: Tensor

    def __getitem__(self, layer: int) -> "Predictions":
        """The predictions of one layer, if the first axis is layers."""
        return Predictions(*(part[layer] for part in vars(self).values()))


@dataclass(frozen=True, repr=False)
class Inspection:
    """The arrays that a model computes for a text; every tensor is float32 on the CPU.

    | field                             | shape        | value                                                       |
    |-----------------------------------|--------------|-------------------------------------------------------------|
    | `attention`                       | (L, H, T, T) | attention weights: row t has the weights of position t      |
    | `lens`                            | (L, T)       | predictions from each block's output by the logit lens      |
    | `token_norms`, `position_norms`   | (T,)         | Euclidean norms of the two embeddings                       |
    | `attention_norms`, `mlp_norms`    | (L, T)       | norms of the output that each sublayer adds to the residual |
    | `residual_norms`                  | (L, T)       | norms of the residual stream after each block               |

    The logit lens applies the final norm and the head to a block's output; for the last block, that is the model's own
    prediction.
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
        """The model's own predictions, (T,)."""
        return self.lens[-1]

    def __repr__(self) -> str:
        layers, heads = self.attention.shape[:2]
        return f"Inspection({count(len(self.ids), 'token')}, {count(layers, 'layer')}, {count(heads, 'head')} each)"

    def _repr_html_(self) -> str:
        measured = zip(-self.lens.logprobs.nanmean(-1), self.residual_norms.mean(-1), strict=True)
        lines = [f"{layer:5}  {loss:23.3f}  {norm:13.1f}" for layer, (loss, norm) in enumerate(measured, 1)]
        return "<pre>" + "\n".join([repr(self), "layer  nats per token by lens  residual norm", *lines]) + "</pre>"


def predict(model: GPT, ids: Sequence[int] | Tensor, *, top: int = 10) -> Predictions:
    """Predicts the token after each of `ids` (T,), with the `top` most likely tokens.

    Raises: ConfigError if there are no ids, more than fit into the context, or ids outside the vocabulary.
    """
    row = _checked(model, ids)
    with eval_mode(model), torch.no_grad():
        return _predictions(model, model.features(row[None])[0], row, top)


def inspect(
    model: GPT, ids: Sequence[int] | Tensor, *, top: int = 10, on_stage: Callable[[], None] = lambda: None
) -> Inspection:
    """Collects what the model computes for `ids` (T,).

    The attention weights take 4 · L · H · T² bytes. `on_stage` is called after each stage; it may raise an error, which
    ends the computation.
    Raises: ConfigError if there are no ids, more than fit into the context, or ids outside the vocabulary.
    """
    row = _checked(model, ids)
    with eval_mode(model), torch.no_grad():
        weights, lens = [], []
        norms: dict[str, list[Tensor]] = {"attention": [], "mlp": [], "mlp_residual": []}
        for stage in model.trace(row[None], attention_weights=True):
            on_stage()
            if stage.name == "attention_weights":
                weights.append(stage.output[0].float().cpu())  # (H, T, T)
            if stage.name in norms:
                norms[stage.name].append(_norms(stage.output[0]))  # (T,)
            if stage.name == "mlp_residual":
                lens.append(_predictions(model, model.final_norm(stage.output)[0], row, top))
        return Inspection(
            ids=row.cpu(),
            attention=torch.stack(weights),  # (L, H, T, T)
            lens=Predictions(*(torch.stack(parts) for parts in zip(*(vars(p).values() for p in lens), strict=True))),
            token_norms=_norms(model.token_embedding.weight[row]),
            position_norms=_norms(model.position_embedding.weight[: len(row)]),
            attention_norms=torch.stack(norms["attention"]),  # (L, T)
            mlp_norms=torch.stack(norms["mlp"]),
            residual_norms=torch.stack(norms["mlp_residual"]),
        )


def mean_bits(
    predictions: Predictions, ids: Sequence[int], token_lengths: np.ndarray
) -> tuple[float | None, float | None]:
    """The mean surprisal of a text per token and per byte, without its first token; None if nothing remains.

    Shapes: predictions (T,), ids (T,); `token_lengths` (V,), the bytes of each of the tokenizer's tokens.
    Units: bits.
    """
    bits = -float(predictions.logprobs[:-1].double().sum()) / math.log(2)
    n_bytes = sum(int(token_lengths[id]) for id in ids[1:] if id < len(token_lengths))
    return (bits / (len(ids) - 1) if len(ids) > 1 else None), (bits / n_bytes if n_bytes else None)


def passage(validation: np.ndarray, context: int) -> list[int]:
    """The first tokens of the validation data, whose surprisal is recorded during a run."""
    return validation[: min(_PASSAGE_TOKENS, context)].tolist()


def surprisal(model: GPT, ids: Sequence[int]) -> list[float]:
    """The loss of each token but the first, rounded to three decimals. Units: nats."""
    return [round(-logprob, 3) for logprob in predict(model, ids, top=1).logprobs[:-1].tolist()]


def _checked(model: GPT, ids: Sequence[int] | Tensor) -> Tensor:
    """The ids as a row on the model's device."""
    check_module(model)
    if isinstance(ids, str):
        raise ConfigError("ids must be token ids, not a text; give tokenizer.encode(text)")
    row = torch.as_tensor(ids, dtype=torch.int64, device=model.token_embedding.weight.device)  # (T,)
    if row.dim() != 1 or len(row) == 0:
        raise ConfigError(f"ids of shape {tuple(row.shape)} cannot be inspected; give one row (T,) of at least one")
    if row.min() < 0 or row.max() >= model.config.vocab_size:
        raise ConfigError(f"ids must be from 0 to {model.config.vocab_size - 1}, the model's vocabulary")
    return row


def _norms(x: Tensor) -> Tensor:
    """The vectors' Euclidean norms: (T, C) -> (T,)."""
    return x.float().norm(dim=-1).cpu()


def _predictions(model: GPT, features: Tensor, ids: Tensor, top: int) -> Predictions:
    """The head's predictions from features (T, C) of ids (T,), with the logits of a slice of positions at a time."""
    following = ids.roll(-1)
    slices = [
        _describe(logits.log_softmax(dim=-1), following[rows], top) for rows, logits in sliced_logits(model, features)
    ]
    joined = Predictions(*(torch.cat(parts).cpu() for parts in zip(*slices, strict=True)))
    joined.logprobs[-1], joined.ranks[-1] = torch.nan, -1  # `roll` put the first token there
    return joined


def _describe(logprobs: Tensor, following: Tensor, top: int) -> tuple[Tensor, ...]:
    """The fields of `Predictions` for log-probabilities (T, V) and the actual next tokens (T,)."""
    most_likely = logprobs.topk(min(top, logprobs.shape[-1]), dim=-1)  # (T, k)
    actual = logprobs.gather(1, following[:, None])  # (T, 1)
    entropy = torch.special.entr(logprobs.exp()).sum(dim=-1)
    return most_likely.indices, most_likely.values, entropy, actual[:, 0], (logprobs > actual).sum(dim=-1)
