"""Samples the next tokens of rows whose requests have different settings."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from minigpt.device import to_device
from minigpt.errors import MinigptError
from minigpt.generation.batching.rows import Row
from minigpt.generation.decoding import GeneratedToken, describe, pack, read_together
from minigpt.generation.sampling import UNDECIDED

Key = TypeVar("Key")


def next_tokens(rows: Sequence[Row], logits: Tensor) -> list[GeneratedToken | MinigptError]:
    """The next token of each row, or the error that ends its request: logits (B, V).

    Each row is sampled with its own request's settings and random numbers. Rows with the same settings are sampled
    together, which gives each of them the token that it gets alone. All tokens are read from the device at once.
    """
    found: dict[int, GeneratedToken | MinigptError] = {}
    processed: dict[int, Tensor] = {}  # (1, V) each
    for index, row in enumerate(rows):
        try:
            processed[index] = _process(row, logits[index : index + 1])
        except MinigptError as error:
            found[index] = error
    parts, packed = [], []
    for group in _groups(processed, lambda index: rows[index].request.sampler.rule):
        numbers = [_number(rows[index]) for index in group]
        picked = rows[group[0]].request.sampler.pick_at_once(torch.cat([processed[at] for at in group]), numbers)
        tokens = dict(zip(group, picked.unbind(), strict=True))  # () each
        for part in _groups(group, lambda index: rows[index].request.alternatives):
            own = logits if len(part) == len(rows) else torch.cat([logits[index : index + 1] for index in part])
            parts.append(part)
            chosen = picked if len(part) == len(group) else torch.stack([tokens[at] for at in part])
            packed.append(pack(own, chosen, rows[part[0]].request.alternatives))
    for part, described in zip(parts, read_together(packed) if packed else [], strict=True):
        for index, token in zip(part, described, strict=True):
            found[index] = token
            if token.id == UNDECIDED:
                found[index] = _sample_again(rows[index], processed[index], logits[index : index + 1])
    return [found[index] for index in range(len(rows))]


def _process(row: Row, logits: Tensor) -> Tensor:
    """A row's logits after its request's processors: (1, V) -> (1, V).

    Raises: ConfigError as `Sampler.process`.
    """
    sampler, states = row.request.sampler, None if row.state is None else [row.state]
    history = to_device(row.history(), logits.device) if sampler.needs_history else logits.new_empty(1, 0).long()
    return sampler.process(logits, history, row.n_new, states)


def _number(row: Row) -> float:
    (number,) = row.request.sampler.numbers([row.sample], row.n_new)
    return number


def _sample_again(row: Row, processed: Tensor, logits: Tensor) -> GeneratedToken | MinigptError:
    """The token of a row that the first draw left undecided: processed and logits (1, V)."""
    try:
        picked = row.request.sampler.pick(processed, logits, [_number(row)])
    except MinigptError as error:
        return error
    (token,) = describe(logits, picked, row.request.alternatives)
    return token


def _groups(indices: Iterable[int], key: Callable[[int], Key]) -> list[list[int]]:
    """The indices, grouped by their key, in order."""
    groups: dict[Key, list[int]] = {}
    for index in indices:
        groups.setdefault(key(index), []).append(index)
    return list(groups.values())
