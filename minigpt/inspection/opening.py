"""Chooses what an inspection shows first: a token and a head that tell something."""

import torch
from torch import Tensor

from minigpt.inspection.activations import Inspection

_NEAR = 3  # the positions before have no earlier token that a head has to look for


def opening(inspection: Inspection, layer: int | None = None, head: int | None = None) -> tuple[int, int, int]:
    """The layer, head and position with the largest product of two measures; if all are 0, the first and the last.

    - What the layers gain after this position: the log-probability of the actual next token by the last layer minus
      that by the first, as the logit lens reads them; with one layer the same everywhere.
    - How the head looks for one token: its weight on a token at least two positions before, less an even share of all
      weights, compared with the mean of this over all positions. A token that gets much weight from everywhere, as the
      first token and periods do ("attention sinks", Xiao et al. 2023), has none of it.

    A layer or a head that is given stays, the other is then 0.
    """
    n_layer, n_head, count = inspection.attention.shape[:3]
    if layer is not None or head is not None:
        chosen = layer or 0, head or 0
        layers, heads = slice(chosen[0], chosen[0] + 1), slice(chosen[1], chosen[1] + 1)
    else:
        chosen, layers, heads = (0, 0), slice(n_layer), slice(n_head)
    if count <= _NEAR + 1:
        return *chosen, count - 1
    actual = inspection.lens.logprobs[:, _NEAR:-1]  # (L, T')
    gain = (actual[-1] - actual[0]).nan_to_num(nan=0.0).clamp(min=0) if n_layer > 1 else torch.ones(1)  # (T',)
    score = gain * _focus(inspection.attention[layers, heads])[:, :, _NEAR:-1]  # (L', H', T')
    if not score.max() > 0:
        return *chosen, count - 1
    at, position = divmod(int(score.flatten().argmax()), score.shape[2])
    return chosen[0] + at // score.shape[1], chosen[1] + at % score.shape[1], _NEAR + position


def _focus(weights: Tensor) -> Tensor:
    """The second measure of `opening` at each position, its largest of all tokens: (L, H, T, T) -> (L, H, T)."""
    count = weights.shape[-1]
    above = weights.nan_to_num() - 1 / torch.arange(1, count + 1)[:, None]  # an even share
    is_far = torch.ones(count, count, dtype=torch.bool).tril(-2)
    mean = (above * is_far).sum(dim=-2) / is_far.sum(dim=-2).clamp(min=1)  # (L, H, T), of each token
    return (above - mean[:, :, None]).masked_fill(~is_far, 0).amax(dim=-1).clamp(min=0)
