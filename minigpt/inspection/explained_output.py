"""The output forms of `generate --explain` and `generate --table`, which show every token's probability."""

from typing import TYPE_CHECKING

from rich.console import Console

from minigpt.cli.render.continuations import Continuation, Output
from minigpt.inspection.token_colors import CharacterDecoder, TokenPainter
from minigpt.inspection.token_table import TokenRow, print_header, print_row
from minigpt.tokenizer.display import token_label

if TYPE_CHECKING:
    from minigpt.generation.streaming import Piece
    from minigpt.tokenizer.tokenizer import Tokenizer


class ColoredOutput(Output):
    """Prints the text with each token colored by its probability."""

    streams = shows_probabilities = True

    def __init__(self, out: Console, tokenizer: "Tokenizer") -> None:
        self.tokenizer, self.painter = tokenizer, TokenPainter(out)
        self._decoder = CharacterDecoder(tokenizer, continues=True)
        self._pending: list[tuple[str, float | None]] = []  # characters that the stop filter still holds back

    def begin(self, prompt: str) -> None:
        self._decoder, self._pending = CharacterDecoder(self.tokenizer, continues=True), []
        self.painter.add(prompt, None)

    def add(self, piece: "Piece") -> None:
        if piece.token.id not in self.tokenizer.end_ids:
            text, logprob = self._decoder.feed(piece.token.id, piece.token.logprob)
            self._pending.append((text[len(piece.healed) :], logprob))
        rest = piece.text
        while rest:
            text, logprob = self._pending.pop(0) if self._pending else (rest, self._decoder.flush()[1])
            if len(text) > len(rest):
                self._pending.insert(0, (text[len(rest) :], logprob))
            self.painter.add(rest[: len(text)], logprob)
            rest = rest[len(text) :]

    def write(self, continuation: Continuation) -> None:
        super().write(continuation)
        self.painter.end()

    def end(self) -> None:
        self.painter.end()
        self.painter.legend()


class TableOutput(Output):
    """Prints a row for every token, with the most likely tokens in its place."""

    streams = shows_probabilities = True

    def __init__(self, out: Console, tokenizer: "Tokenizer") -> None:
        self.out, self.tokenizer = out, tokenizer
        self._n_rows = 0

    def begin(self, _prompt: str) -> None:
        self._n_rows = 0
        print_header(self.out)

    def add(self, piece: "Piece") -> None:
        token = piece.token
        most_likely = [(token_label(self.tokenizer, id), logprob) for id, logprob in token.alternatives]
        label = token_label(self.tokenizer, token.id)
        print_row(self.out, TokenRow(self._n_rows, label, token.logprob, most_likely, token.entropy, token.rank))
        self._n_rows += 1
