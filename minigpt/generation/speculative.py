"""Speculative decoding: draft tokens of an edge, which the model verifies several at a time; no token is another."""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

_PAUSE, _MAX_PAUSE = 16, 256  # steps

ChooseDraft = Callable[[Tensor, Sequence[int]], int]


class Drafter(Protocol):
    """Proposes draft tokens cheaply. A wrong one costs time but changes no token."""

    def propose(self, tokens: Sequence[int], max_tokens: int, choose: ChooseDraft) -> list[int]:
        """At most `max_tokens` tokens that may follow `tokens`.

        `choose(logits, draft)` is the token that the sampler would choose from logits (V,) after `tokens` and the draft
        tokens `draft`.
        """


class SpeedupMonitor:
    """Measures whether drafting is faster: tokens per second with draft tokens against those of plain steps.

    Starts with plain steps to compare with. After several drafting steps that were slower, drafting pauses, for longer
    each time.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._plain_seconds: list[float] = []  # of the last plain steps
        self._speedup = 0.0  # running mean of tokens per duration of a plain step
        self._n_drafted = 0  # steps since the last pause
        self._pause, self._waiting = _PAUSE, 2  # the length of the next pause; plain steps until the next draft
        self._started = 0.0

    def should_draft(self) -> bool:
        """Whether the step that begins now should draft tokens."""
        self._started = self._clock()
        return self._waiting == 0

    def record(self, n_draft: int, n_tokens: int) -> None:
        """Records the end of a step that drafted `n_draft` tokens and generated `n_tokens`."""
        seconds = self._clock() - self._started
        if n_draft == 0:
            self._plain_seconds = [*self._plain_seconds[-15:], seconds]
            self._waiting = max(0, self._waiting - 1)
            return
        # The median; of two the shorter one, because the first step may include a warm-up.
        plain = sorted(self._plain_seconds)[(len(self._plain_seconds) - 1) // 2]
        self._n_drafted += 1
        self._speedup += (n_tokens * plain / seconds - self._speedup) / min(self._n_drafted, 8)
        if self._n_drafted >= 8 and self._speedup < 1:
            self._waiting, self._pause = self._pause, min(2 * self._pause, _MAX_PAUSE)
            self._n_drafted = 0
        elif self._speedup > 1.2:
            self._pause = _PAUSE
