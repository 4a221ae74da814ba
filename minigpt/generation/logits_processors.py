"""What may be said next: pure filters, logits (B, V) to logits (B, V); they know no settings and no text.

`history` is (B, T) int64, every token so far, -1 where a row is padded on the left. What a filter forbids is -inf.
"""

import math

import torch
from torch import Tensor


def penalize_repetition(logits: Tensor, history: Tensor, penalty: float) -> Tensor:
    """The logits with those of every token in the history divided by `penalty`, or multiplied where negative.

    Source: Keskar et al. 2019, section 4.1; the multiplication is transformers'.
    """
    if history.shape[1] == 0:
        return logits
    seen = torch.where(history < 0, history[:, -1:], history)  # (B, T); the last column is no padding
    score = logits.gather(1, seen)  # (B, T)
    return logits.scatter(1, seen, torch.where(score < 0, score * penalty, score / penalty))


def penalize_frequency(logits: Tensor, new: Tensor, frequency: float, presence: float) -> Tensor:
    """The logits less `frequency` for each time that a token stands in `new`, and `presence` if it does at all.

    Shapes: new (B, N) int64, the tokens generated so far, without padding.
    Source: OpenAI's API reference, "frequency and presence penalties".
    """
    logits = logits.scatter_add(1, new, torch.full_like(new, -1, dtype=logits.dtype) * frequency)
    return logits.scatter(1, new, logits.gather(1, new) - presence)


def ban_repeated_ngrams(logits: Tensor, history: Tensor, size: int) -> Tensor:
    """The logits without the tokens that would end a run of `size` tokens which the history already holds.

    Source: Paulus et al. 2017, section 2.5; Klein et al. 2017 (OpenNMT) for any size.
    """
    if history.shape[1] < size:
        return logits
    runs = history.unfold(1, size, 1)  # (B, T - size + 1, size)
    current = history[:, history.shape[1] - size + 1 :]  # (B, size - 1)
    repeats = (runs[..., :-1] == current[:, None]).all(-1) & (runs >= 0).all(-1)  # (B, T - size + 1)
    return _ban(logits, repeats, runs[..., -1])


def ban_sequences(logits: Tensor, history: Tensor, sequences: Tensor) -> Tensor:
    """The logits without the last token of every sequence whose other tokens are the end of the history.

    Shapes: sequences (N, L) int64, the shorter ones with -1 on the left.
    """
    length = sequences.shape[1] - 1
    context = torch.nn.functional.pad(history, (length, 0), value=-1)[:, history.shape[1] :]  # (B, L - 1)
    prefixes = sequences[:, :-1]  # (N, L - 1)
    complete = ((context[:, None] == prefixes) | (prefixes < 0)).all(-1)  # (B, N)
    return _ban(logits, complete, sequences[:, -1].expand_as(complete))


def _ban(logits: Tensor, where: Tensor, tokens: Tensor) -> Tensor:
    """The logits with `tokens` at -inf where `where` says so: both (B, N)."""
    row, column = where.nonzero(as_tuple=True)
    return logits.index_put((row, tokens[row, column]), logits.new_tensor(-math.inf))


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """The logits with all but each row's k largest at -inf; a k above V keeps every one.

    Ties with the k-th are kept.
    Source: Fan et al. 2018, section 5.4.
    """
    kth = logits.topk(min(k, logits.shape[-1]), dim=-1).values[..., -1:]  # (B, 1)
    return logits.masked_fill(logits < kth, -math.inf)


def keep_top_p(logits: Tensor, p: float | Tensor) -> Tensor:
    """The logits with all at -inf but each row's smallest set of likeliest tokens that holds probability p or more.

    The likeliest token is always kept, and ties with the least likely one.
    Shapes: p may be (B, 1), its own for every row.
    Source: Holtzman et al. 2020, section 3.1 (nucleus sampling).
    """
    ordered = logits.sort(dim=-1, descending=True).values  # (B, V)
    probability = ordered.softmax(dim=-1)
    before = probability.cumsum(dim=-1) - probability  # the mass of all likelier tokens
    return logits.masked_fill(logits < _last(ordered, before < p), -math.inf)


def keep_min_p(logits: Tensor, share: float) -> Tensor:
    """The logits with all at -inf but the tokens at least `share`, above 0, times as likely as each row's likeliest.

    Source: Nguyen et al. 2024, section 3.
    """
    return logits.masked_fill(logits < logits.amax(dim=-1, keepdim=True) + math.log(share), -math.inf)


def keep_typical(logits: Tensor, mass: float) -> Tensor:
    """The logits with all at -inf but each row's smallest set that holds `mass` of the tokens of typical surprise.

    Typical is a token whose surprise, -log p, is near the row's entropy, which is the surprise expected. Ties with the
    least typical one are kept.
    Source: Meister et al. 2023, section 4.
    """
    log_probability = logits.log_softmax(dim=-1)  # (B, V)
    probability = log_probability.exp()
    entropy = -(probability * log_probability).nansum(dim=-1, keepdim=True)  # (B, 1); 0 log 0 is nan and counts 0
    strangeness = (log_probability + entropy).abs()  # (B, V)
    ordered, order = strangeness.sort(dim=-1)
    probability = probability.gather(-1, order)
    before = probability.cumsum(dim=-1) - probability  # the mass of all more typical tokens
    return logits.masked_fill(strangeness > _last(ordered, before < mass), -math.inf)


def _last(ordered: Tensor, kept: Tensor) -> Tensor:
    """Each row's last value among those kept, which stand first and are one at least: two (B, V) -> (B, 1)."""
    return ordered.gather(-1, kept.sum(dim=-1, keepdim=True) - 1)
