"""The output forms of `minigpt generate`: plain text and JSON, and the interface of those that edges add."""

import json
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from minigpt.cli.render.terminal import prose, write

if TYPE_CHECKING:
    from minigpt.generation.streaming import Piece
    from minigpt.tokenizer.tokenizer import Tokenizer


class Continuation:
    """One continuation of a prompt, collected in pieces."""

    def __init__(self, prompt: str, number: int) -> None:
        self.prompt, self.number = prompt, number
        self.pieces: list[Piece] = []
        self.timing: dict[str, Any] = {}  # of all the continuations generated in the same batch

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)


class Output:
    """Prints continuations. If it `streams`, a single continuation is printed piece by piece; others as a whole.

    With `shows_probabilities`, tokens are generated with their log-probabilities and the most likely alternatives.
    """

    streams = shows_probabilities = False
    separator: str | None = "\n---"  # a line between two continuations

    def begin(self, prompt: str) -> None:
        """Starts a continuation of this prompt that arrives piece by piece."""

    def add(self, piece: "Piece") -> None:
        """Prints a piece of it."""

    def write(self, continuation: Continuation) -> None:
        """Prints a whole continuation."""
        self.begin(continuation.prompt)
        for piece in continuation.pieces:
            self.add(piece)

    def end(self) -> None:
        """Ends the output."""

    def record(self, continuation: Continuation) -> dict[str, Any]:  # noqa: ARG002
        """What it adds to the JSON record of a continuation, if that is printed instead."""
        return {}


class PlainOutput(Output):
    """Prints the text only."""

    streams = True

    def __init__(self) -> None:
        self._line_is_open = False

    def begin(self, prompt: str) -> None:
        self._line_is_open, self._prose = True, prose()
        self._prose(prompt)

    def add(self, piece: "Piece") -> None:
        self._prose(piece.text)

    def write(self, continuation: Continuation) -> None:
        prose()(continuation.prompt + continuation.text + "\n")

    def end(self) -> None:
        if self._line_is_open:
            write("")


class JsonOutput(Output):
    """Prints one JSON object per continuation; `shared` holds the entries that all of them have in common.

    The `other` output adds what it would show.
    """

    shows_probabilities = True
    separator = None

    def __init__(self, tokenizer: "Tokenizer", shared: dict[str, Any], other: Output | None) -> None:
        self._tokenizer, self._shared, self._other = tokenizer, shared, other or Output()

    def write(self, continuation: Continuation) -> None:
        tokens = [piece.token for piece in continuation.pieces]
        own = {
            "prompt": continuation.prompt,
            "text": continuation.text,
            "healed": "".join(
                piece.healed for piece in continuation.pieces
            ),  # the prompt's end, if it is spelled again
            "ids": [token.id for token in tokens],
            "logprobs": [token.logprob for token in tokens],
            "alternatives": [
                [
                    {"id": id, "logprob": logprob, "text": self._tokenizer.decode([id])}
                    for id, logprob in each.alternatives
                ]
                for each in tokens
            ],
            "finish_reason": continuation.pieces[-1].finish_reason or "" if tokens else "",
            "sample": continuation.number,
        }
        write(json.dumps(own | self._shared | continuation.timing | self._other.record(continuation)))


def collect(continuations: Sequence[Continuation], pieces: "Iterable[Piece]", output: Output | None) -> None:
    started, first = time.perf_counter(), 0.0
    for piece in pieces:
        first = first or time.perf_counter() - started
        continuations[piece.row].pieces.append(piece)
        if output is not None:
            output.add(piece)
    seconds = time.perf_counter() - started
    n_tokens = sum(len(continuation.pieces) for continuation in continuations)
    for continuation in continuations:
        continuation.timing = {
            "seconds": seconds,
            "first_token_seconds": first,
            "tokens_per_second": n_tokens / seconds,
        }
