"""Guesses of what comes next, for a model to verify several at a time; it changes no token, only when it is known."""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from minigpt.generation.engines.engine import Engine
from minigpt.generation.engines.pytorch import TorchEngine

_LONGEST_MATCH = 4  # tokens of the end that are looked for further up
_MOST_GUESSES = 7
_PAUSE, _LONGEST_PAUSE = 16, 256  # steps


class Drafter(Protocol):
    """Guesses tokens cheaply. A guess that is wrong costs time and nothing else."""

    def propose(self, tokens: Sequence[int], most: int, choose: Callable[[Tensor, int], int]) -> list[int]:
        """At most `most` tokens that may come behind `tokens`; `choose(logits (V,), ahead)` is what the sampler would
        draw from such logits for the token that comes `ahead` places behind the next one."""


class PromptLookup:
    """Guesses that what followed the last few tokens when they stood there before follows again.

    Source: Saxena 2023, "Prompt lookup decoding"; the idea is that of LZ77.
    """

    def __init__(self) -> None:
        self._seen: list[int] = []
        self._ends: dict[tuple[int, ...], int] = {}  # where a run of tokens last ended, the end of the text left out

    def propose(self, tokens: Sequence[int], most: int, _choose: Callable[[Tensor, int], int]) -> list[int]:
        self._index(tokens)
        for size in range(min(_LONGEST_MATCH, len(tokens) - 1), 1, -1):
            end = self._ends.get(tuple(tokens[-size:]))
            if end is not None:
                followed = tokens[end:]  # and that again, if it is short: the end of a text that goes round in circles
                return [followed[at % len(followed)] for at in range(min(most, _MOST_GUESSES))]
        return []

    def _index(self, tokens: Sequence[int]) -> None:
        """Notes the runs that end before the last token."""
        if list(tokens[: len(self._seen)]) != self._seen:
            self._seen, self._ends = [], {}
        for end in range(max(1, len(self._seen)), len(tokens)):
            for size in range(2, _LONGEST_MATCH + 1):
                if size <= end:
                    self._ends[tuple(tokens[end - size : end])] = end
        self._seen = list(tokens)


def default_drafter(engine: Engine) -> PromptLookup | None:
    """`PromptLookup` for the engines whose logits are bit for bit the same for several tokens at once; else None."""
    return None if isinstance(engine, TorchEngine) else PromptLookup()


class DraftModel:
    """Guesses by a smaller model of the same vocabulary, which draws with the very numbers that the large one will.

    Source: Leviathan et al. 2023, section 2.1 (the draft); that both draw with the same number, and the guess counts
    where they agree, takes the place of its rejection sampling: every token is then exactly the large model's own.
    """

    def __init__(self, engine: Engine, vocab_size: int) -> None:
        self.engine, self.vocab_size = engine, vocab_size
        self._read: list[int] = []

    def propose(self, tokens: Sequence[int], most: int, choose: Callable[[Tensor, int], int]) -> list[int]:
        most = min(most, _MOST_GUESSES, self.engine.n_positions - len(tokens))
        if most <= 0:  # beyond its context a small model would have to read anew at every step
            return []
        logits = self._catch_up(tokens)  # (V,)
        guesses: list[int] = []
        while True:
            guesses.append(choose(logits[: self.vocab_size], len(guesses)))
            if len(guesses) == most:
                return guesses
            logits = self.engine.read(torch.tensor([[guesses[-1]]], device=self.engine.device))[0, -1]
            self._read.append(guesses[-1])

    def _catch_up(self, tokens: Sequence[int]) -> Tensor:
        """Reads what is new of the tokens, and forgets guesses that were wrong: logits (V,) of what comes next."""
        same = next(
            (at for at, (a, b) in enumerate(zip(self._read, tokens, strict=False)) if a != b),
            min(len(self._read), len(tokens)),
        )
        same = min(same, len(tokens) - 1)  # one at least is read, for its logits
        if same == 0:
            self._read = list(tokens)
            return self.engine.start([tokens])[0]
        self.engine.rewind(len(self._read) - same)
        new = torch.tensor([list(tokens[same:])], device=self.engine.device)
        self._read = list(tokens)
        return self.engine.read(new)[0, -1]


class Gain:
    """Whether guessing pays, by the clock: tokens per second with guesses against those of plain steps.

    It begins with plain steps to compare with, and after a stretch that did not pay it pauses, longer each time.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._plain: list[float] = []  # seconds of plain steps
        self._rate = 0.0  # tokens for the price of a plain step, of late
        self._tried = 0
        self._pause, self._waits = _PAUSE, 2  # plain steps still to take
        self._began = 0.0

    def wants_guesses(self) -> bool:
        """Whether the step that begins now should guess."""
        self._began = self._clock()
        return self._waits == 0

    def note(self, guesses: int, gained: int) -> None:
        """What a step with so many guesses came to, in tokens."""
        seconds = self._clock() - self._began
        if guesses == 0:
            self._plain = [*self._plain[-15:], seconds]
            self._waits = max(0, self._waits - 1)
            return
        plain = sorted(self._plain)[(len(self._plain) - 1) // 2]  # of two the shorter: the first may warm things up
        self._tried += 1
        self._rate += (gained * plain / seconds - self._rate) / min(self._tried, 8)
        if self._tried >= 8 and self._rate < 1:
            self._waits, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE)
            self._tried = 0
        elif self._rate > 1.2:
            self._pause = _PAUSE
