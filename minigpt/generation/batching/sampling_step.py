"""Samples the next tokens of rows whose requests have different settings."""

from collections.abc import Sequence

import torch
from torch import Tensor

from minigpt.device import to_device
from minigpt.errors import MinigptError
from minigpt.generation.batching.rows import Row
from minigpt.generation.decoding import GeneratedToken, describe, pack, read_together
from minigpt.generation.sampling import UNDECIDED


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
    groups: dict[object, list[int]] = {}  # rows with the same settings
    for index in processed:
        request = rows[index].request
        groups.setdefault((request.sampler.rule, request.alternatives), []).append(index)
    packed = []
    for group in groups.values():
        request, numbers = rows[group[0]].request, [_number(rows[index]) for index in group]
        picked = request.sampler.pick_at_once(torch.cat([processed[index] for index in group]), numbers)
        own = logits if len(group) == len(rows) else torch.cat([logits[index : index + 1] for index in group])
        packed.append(pack(own, picked, request.alternatives))
    for group, described in zip(groups.values(), read_together(packed) if packed else [], strict=True):
        for index, token in zip(group, described, strict=True):
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
