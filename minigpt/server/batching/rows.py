"""The rows of a batch: each is one continuation of a request, in the queue or in a slot; samples their next tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from minigpt.device import to_device
from minigpt.errors import MinigptError
from minigpt.generation.decoding import (
    GeneratedToken,
    describe,
    pack,
    read_together,
    visible_tokens,
    window_start,
)
from minigpt.generation.healing import Prompt
from minigpt.generation.sampling import UNDECIDED
from minigpt.generation.streaming import RowText
from minigpt.server.batching.requests import GenerationRequest
from minigpt.slots.slots import Chunk
from minigpt.tokenizer.tokenizer import Tokenizer


@dataclass(eq=False)
class Work:
    """The state of one request: what its rows share."""

    request: GenerationRequest
    rows_left: int  # rows that have not ended
    rows_waiting: int  # rows that do not have the prompt's keys and values yet
    logits: Tensor | None = None  # (1, V), after the prompt
    saved: Tensor | None = None  # the prompt's keys and values, while rows wait for them
    scores: list[GeneratedToken] = field(default_factory=list)  # of the prompt's tokens so far


class Row:
    """One continuation: its tokens, and how many of those that the model sees its slot holds."""

    def __init__(self, work: Work, sample: int, tokenizer: Tokenizer, n_positions: int) -> None:
        request = work.request
        self.work, self.request, self.sample = work, request, sample
        self.tokens = list(request.prompt)
        prompt = Prompt(self.tokens, request.end)
        self.text = RowText(sample, tokenizer, request.config, prompt, one_turn=request.one_turn)
        constraint = request.sampler.constraint
        self.state = None if constraint is None else constraint.start(request.prompt, request.end.encode())
        self.slot = -1
        self._n_positions = n_positions
        self._window = -1
        self.visible: list[int] = []  # the tokens that the model sees
        self.n_read = 0  # of them, those whose keys and values are in the slot
        self.move_window()

    @property
    def n_new(self) -> int:
        """How many tokens were generated."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def n_unread(self) -> int:
        """How many tokens the model must read before it predicts the next one."""
        return len(self.visible) - self.n_read

    def move_window(self) -> None:
        """Makes `visible` what the model sees now; a window that has moved must be read again."""
        keep_first = self.request.config.keep_first
        start = window_start(len(self.tokens) - keep_first, self._n_positions - keep_first)
        if start != self._window:
            self._window, self.n_read = start, 0
            self.visible = visible_tokens(self.tokens, self._n_positions, keep_first)

    def append(self, token: int) -> None:
        """Adds a generated token, which the model reads next."""
        self.tokens.append(token)
        if self.state is not None and (constraint := self.request.sampler.constraint) is not None:
            self.state = constraint.advance(self.state, token)
        self.visible.append(token)
        self.move_window()

    def chunk(self, size: int) -> Chunk:
        """The next `size` unread tokens, with the logits that are needed after them."""
        ids = self.visible[self.n_read : self.n_read + size]
        scores = self.request.score_prompt and self.n_new == 0
        n_logits = size if scores else int(size == self.n_unread)
        return Chunk(self.slot, self.n_read, ids, n_logits)


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
    tokens = row.tokens if sampler.needs_history else []
    history = to_device(torch.tensor([tokens], dtype=torch.int64), logits.device)  # (1, T)
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
