"""Logits processors: callables that change the logits of the next token, to be composed as a list.

No processor changes its arguments in place. A token that must not be drawn gets the logit -inf.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from minigpt.config import SamplingConfig
from minigpt.device import to_device
from minigpt.edges import provided
from minigpt.errors import ConfigError
from minigpt.tokenizer.tokenizer import Tokenizer


class LogitsProcessor(Protocol):
    """A function or object that is called as `processor(logits, history, n_new)` and returns the changed logits.

    `logits` are (B, V) float32, and so is the result. `history` holds all tokens so far, (B, T) int64, with -1 as the
    padding of shorter rows on the left; its last `n_new` columns are the generated tokens.

    The result for a row must depend on that row's arguments alone. Then a row gets the same tokens alone, in a batch
    and in speculative decoding.

    A processor that uses only `logits` may have an attribute `needs_history = False`. If no processor needs the
    history, it is not built, and `history` is (B, 0).

    >>> def never_repeat_a_token(logits, history, n_new):
    ...     last = history[:, -1:]  # (B, 1)
    ...     return logits.scatter(1, last, -torch.inf)
    >>> from minigpt import Sampler, SamplingConfig
    >>> sampler = Sampler(SamplingConfig(temperature=0), processors=[never_repeat_a_token])
    >>> sampler.choose(torch.tensor([[1.0, 3.0, 2.0]]), history=torch.tensor([[0, 1]]), n_new=1)
    tensor([2])
    """

    def __call__(self, logits: Tensor, history: Tensor, n_new: int, /) -> Tensor: ...


# Bans


class MinNewTokens:
    """Forbids the ends of a text until `count` tokens have been generated."""

    def __init__(self, count: int, end_ids: Sequence[int]) -> None:
        self.count, self.end_ids = count, end_ids

    def __call__(self, logits: Tensor, _history: Tensor, n_new: int) -> Tensor:
        if n_new >= self.count:
            return logits
        return logits.index_fill(1, to_device(torch.tensor(self.end_ids), logits.device), -math.inf)


class BanTokens:
    """Forbids these tokens."""

    needs_history = False

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = torch.tensor(ids)  # (N,)

    def __call__(self, logits: Tensor, _history: Tensor | None = None, _n_new: int = 0) -> Tensor:
        return logits.index_fill(1, to_device(self._ids, logits.device), -math.inf)


# Truncations: each keeps some of a row's most likely tokens, and all that tie with the last of them. If one forbids the
# least likely of a row's K most likely tokens, it would forbid all others too.


def top_k(logits: Tensor, k: int) -> Tensor:
    """Keeps each row's k most likely tokens; all if k is above V: (B, V) -> (B, V).

    Source: Fan et al. 2018, section 5.4.
    """
    kth = logits.topk(min(k, logits.shape[-1]), dim=-1).values[..., -1:]  # (B, 1)
    return logits.masked_fill(logits < kth, -math.inf)


def top_p(logits: Tensor, p: float, mass: float | Tensor = 1.0) -> Tensor:
    """Keeps each row's smallest set of most likely tokens with a total probability of at least p: (B, K) -> (B, K).

    The logits hold the share `mass` of their row's probability, a number or (B, 1).
    Source: Holtzman et al. 2020, section 3.1 (nucleus sampling).
    """
    ordered = logits.sort(dim=-1, descending=True).values  # (B, K)
    probability = ordered.softmax(dim=-1)
    before = probability.cumsum(dim=-1) - probability  # the mass of all more likely tokens
    return logits.masked_fill(logits < _last(ordered, before < p / mass), -math.inf)


def min_p(logits: Tensor, p: float) -> Tensor:
    """Keeps the tokens at least `p`, above 0, times as likely as each row's most likely one: (B, V) -> (B, V).

    Source: Nguyen et al. 2024, section 3.
    """
    return logits.masked_fill(logits < logits.amax(dim=-1, keepdim=True) + math.log(p), -math.inf)


def typical_p(logits: Tensor, p: float) -> Tensor:
    """Keeps each row's smallest set of the most typical tokens with a total probability of at least p.

    A token is typical if its surprisal, -log p, is near the row's entropy, which is the expected surprisal. Ties with
    the least typical token are kept.
    Shapes: (B, V) -> (B, V).
    Source: Meister et al. 2023, "Locally typical sampling".
    """
    log_probability = logits.log_softmax(dim=-1)  # (B, V)
    probability = log_probability.exp()
    entropy = -(probability * log_probability).nansum(dim=-1, keepdim=True)  # (B, 1); 0 log 0 is NaN and counts 0
    distance = (log_probability + entropy).abs()  # (B, V)
    ordered, order = distance.sort(dim=-1)
    probability = probability.gather(-1, order)
    before = probability.cumsum(dim=-1) - probability  # the mass of all more typical tokens
    return logits.masked_fill(distance > _last(ordered, before < p), -math.inf)


def _last(ordered: Tensor, kept: Tensor) -> Tensor:
    """Each row's last kept value; the kept values are the first ones: two (B, V) -> (B, 1).

    The first is always kept: a p below the smallest float32 is 0.
    """
    return ordered.gather(-1, kept.sum(dim=-1, keepdim=True).clamp(min=1) - 1)


# The processors of a sampler


class CheckedProcessor:
    """A caller's processor: it gets its own copy of the logits, and its result is checked."""

    def __init__(self, processor: LogitsProcessor) -> None:
        self.processor = processor
        self.needs_history = getattr(processor, "needs_history", True)

    def __call__(self, logits: Tensor, history: Tensor, n_new: int) -> Tensor:
        result = self.processor(logits.clone(), history, n_new)
        name = getattr(self.processor, "__name__", type(self.processor).__name__)
        if not isinstance(result, Tensor) or result.shape != logits.shape:
            given = f"a tensor of shape {tuple(result.shape)}" if isinstance(result, Tensor) else repr(result)
            raise ConfigError(f"logits processor {name} must return logits of shape {tuple(logits.shape)}, not {given}")
        if result.isnan().any() and not logits.isnan().any():  # NaN from the model is reported as such later
            raise ConfigError(f"logits processor {name} must not return NaN; use -inf to forbid a token")
        return result.float()


def configured_processors(config: SamplingConfig, tokenizer: Tokenizer | None) -> Iterator[LogitsProcessor]:
    """The processors that the settings ask for, in transformers' order.

    Those of edges come first: a function at the seam `logits_processors` takes the same arguments and yields them.
    """
    for of_edge in provided("logits_processors"):
        yield from of_edge(config, tokenizer)
    if config.min_new_tokens > 0:
        if tokenizer is None:
            raise ConfigError(f"min_new_tokens ({config.min_new_tokens}) needs a tokenizer")
        yield MinNewTokens(config.min_new_tokens, tokenizer.end_ids)
