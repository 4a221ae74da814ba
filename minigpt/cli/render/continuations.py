"""How `minigpt generate` gives what a model writes: as plain text, painted, with what is copied, or as JSON."""

import json
from typing import TYPE_CHECKING, Any

from minigpt.cli.render.terminal import show

if TYPE_CHECKING:
    from minigpt.cli.memorization import MemorizationMeter
    from minigpt.generation.streaming import Piece
    from minigpt.tokenizer.tokenizer import Tokenizer


class Sample:
    """One continuation as it gathers."""

    def __init__(self, prompt: str, number: int) -> None:
        self.prompt, self.number = prompt, number
        self.text = ""
        self.pieces: list[Piece] = []
        self.ids: list[int] = []
        self.logprobs: list[float | None] = []
        self.alternatives: list[list[dict[str, Any]]] = []
        self.finish_reason = ""
        self.timing: dict[str, float | None] = {}  # of all that were written side by side

    def add(self, piece: "Piece") -> None:
        self.pieces.append(piece)
        self.text += piece.text
        self.finish_reason = piece.finish_reason or ""
        if piece.choice is not None:
            self.ids.append(piece.choice.id)
            self.logprobs.append(piece.choice.logprob)
            self.alternatives.append([{"id": id, "logprob": logprob} for id, logprob in piece.choice.alternatives])


class Output:
    """What samples are given to: whole, or piece by piece where there is one alone and this kind `streams`."""

    streams = False

    def begin(self, prompt: str) -> None:
        """A text is about to come piece by piece, behind this prompt."""

    def add(self, piece: "Piece") -> None:
        """It goes on."""

    def write(self, sample: Sample) -> None:
        """A whole text."""
        raise NotImplementedError

    def end(self) -> None:
        """Nothing more comes."""


class Plain(Output):
    """The text itself."""

    streams = True

    def __init__(self) -> None:
        self._line_is_open = False

    def begin(self, prompt: str) -> None:
        self._line_is_open = True
        show(prompt)

    def add(self, piece: "Piece") -> None:
        show(piece.text)

    def write(self, sample: Sample) -> None:
        print(sample.prompt + sample.text)

    def end(self) -> None:
        if self._line_is_open:
            print()


class Explained(Output):
    """Every token by the probability that the model gave it."""

    streams = True

    def __init__(self, tokenizer: "Tokenizer", *, table: bool) -> None:
        from minigpt.cli.render.console import console
        from minigpt.cli.render.token_colors import Continuation  # which brings rich along

        self._continuation = Continuation(console(stderr=False), tokenizer, table=table)

    def begin(self, prompt: str) -> None:
        self._continuation.begin(prompt)

    def add(self, piece: "Piece") -> None:
        self._continuation.add(piece)

    def write(self, sample: Sample) -> None:
        self._continuation.write(sample.prompt, sample.pieces)

    def end(self) -> None:
        self._continuation.end()


class Marked(Output):
    """The text with what in it is copied from the training text."""

    def __init__(self, meter: "MemorizationMeter") -> None:
        self._meter = meter

    def write(self, sample: Sample) -> None:
        self._meter.show(sample.prompt, sample.text)


class Records(Output):
    """One JSON object a line; `about` is what is the same for all samples."""

    def __init__(
        self, tokenizer: "Tokenizer", about: dict[str, Any], meter: "MemorizationMeter | None", meter_key: str
    ) -> None:
        self._tokenizer, self._about, self._meter, self._meter_key = tokenizer, about, meter, meter_key

    def write(self, sample: Sample) -> None:
        for others in sample.alternatives:
            for other in others:
                other["text"] = self._tokenizer.decode([other["id"]])
        names = ("prompt", "text", "ids", "logprobs", "alternatives", "finish_reason")
        own = {name: getattr(sample, name) for name in names} | {"sample": sample.number}
        record = own | self._about | sample.timing
        if self._meter:
            record[self._meter_key] = self._meter.record(sample.prompt, sample.text)
        print(json.dumps(record))
