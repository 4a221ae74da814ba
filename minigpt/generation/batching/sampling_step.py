"""Samples the next tokens of rows whose requests have different settings."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from minigpt.errors import MinigptError
from minigpt.generation.batching.rows import Row
from minigpt.generation.decoding import GeneratedToken, describe
from minigpt.generation.sampling import uniform

Key = TypeVar("Key")


def next_tokens(rows: Sequence[Row], logits: Tensor) -> list[GeneratedToken | MinigptError]:
    """The next token of each row, or the error that ends its request: logits (B, V).

    Each row is sampled with its own request's settings and random numbers. Rows with the same settings are sampled
    together, which gives each of them the token that it gets alone.
    """
    found: list[GeneratedToken | MinigptError] = [GeneratedToken(0)] * len(rows)
    for group in _groups(range(len(rows)), lambda index: rows[index].request.sampler.rule):
        _sample_group(group, rows, logits, found)
    return found


def _sample_group(
    group: list[int], rows: Sequence[Row], logits: Tensor, found: list[GeneratedToken | MinigptError]
) -> None:
    chosen = logits if len(group) == len(logits) else logits[group]
    try:
        picked = _pick([rows[index] for index in group], chosen)
    except MinigptError as error:
        if len(group) == 1:
            found[group[0]] = error
            return
        for index in group:  # the error concerns some of the rows, which shows when each is sampled alone
            _sample_group([index], rows, logits, found)
        return
    for part in _groups(range(len(group)), lambda at: rows[group[at]].request.alternatives):
        alternatives = rows[group[part[0]]].request.alternatives
        for at, token in zip(part, describe(chosen[part], picked[part], alternatives), strict=True):
            found[group[at]] = token


def _pick(rows: Sequence[Row], logits: Tensor) -> Tensor:
    """The tokens of rows with the same sampling rule: logits (B, V) -> (B,).

    Raises: GenerationError for logits that are NaN or infinite; ConfigError if no token is left to choose.
    """
    processed = logits.float()
    if any(row.request.sampler.processors or row.state is not None for row in rows):
        each = [
            row.request.sampler.process(
                logits[at : at + 1],
                row.history().to(logits.device),
                row.n_new,
                None if row.state is None else [row.state],
            )
            for at, row in enumerate(rows)
        ]
        processed = torch.cat(each)
    numbers = [uniform(row.request.sampler.seed, row.sample, row.n_new) for row in rows]
    return rows[0].request.sampler.pick(processed, logits, numbers)


def _groups(indices: Iterable[int], key: Callable[[int], Key]) -> list[list[int]]:
    """The indices, grouped by their key, in order."""
    groups: dict[Key, list[int]] = {}
    for index in indices:
        groups.setdefault(key(index), []).append(index)
    return list(groups.values())
