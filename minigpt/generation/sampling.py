"""From logits to the next token: pure filters over (B, V), and the draw; it knows no model and no text."""

import math

import torch
from torch import Tensor

from minigpt.config import SamplingConfig


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """The logits with all but each row's k largest at -inf; a k above V keeps every one.

    Shapes: (B, V) -> (B, V). Ties with the k-th are kept.
    Source: Fan et al. 2018, section 5.4.
    """
    kth = logits.topk(min(k, logits.shape[-1]), dim=-1).values[..., -1:]  # (B, 1)
    return logits.masked_fill(logits < kth, -math.inf)


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """The logits with all at -inf but each row's smallest set of likeliest tokens that holds probability p or more.

    Shapes: (B, V) -> (B, V). The likeliest token is always kept.
    Source: Holtzman et al. 2020, section 3.1 (nucleus sampling).
    """
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)  # (B, V)
    probability = ordered.softmax(dim=-1)
    before = probability.cumsum(dim=-1) - probability  # the mass of all likelier tokens
    dropped = (before >= p).scatter(-1, order, before >= p)  # back to the vocabulary's order
    return logits.masked_fill(dropped, -math.inf)


def next_token_distribution(logits: Tensor, config: SamplingConfig) -> Tensor:
    """The probabilities that a token is drawn from: temperature first, then top-k, then top-p: (B, V) -> (B, V)."""
    logits = logits.float()
    if config.temperature == 0:
        return torch.nn.functional.one_hot(logits.argmax(dim=-1), logits.shape[-1]).float()
    # The largest at 0, which changes nothing: however small the temperature, nothing then overflows.
    logits = (logits - logits.amax(dim=-1, keepdim=True)) / config.temperature
    if config.top_k is not None:
        logits = keep_top_k(logits, config.top_k)
    if config.top_p < 1:
        logits = keep_top_p(logits, config.top_p)
    return logits.softmax(dim=-1)


def choose(logits: Tensor, config: SamplingConfig, generator: torch.Generator | None) -> Tensor:
    """The next token of each row, the likeliest at temperature 0, else drawn: (B, V) -> (B,) int64."""
    if config.temperature == 0:
        return logits.argmax(dim=-1)
    probability = next_token_distribution(logits, config)
    return torch.multinomial(probability, 1, generator=generator).squeeze(1)
