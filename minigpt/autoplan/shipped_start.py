"""How a new run would compare with one that begins with the model that comes with minigpt."""

from dataclasses import dataclass

from minigpt.autoplan.expectation import ExpectedRange
from minigpt.data.corpus import Corpus
from minigpt.evaluation.perplexity import evaluate
from minigpt.pretrained.open_model import load_model
from minigpt.storage.shipped_models import find_shipped

_BYTES = 24_000  # of held-out text that the model reads, in about a second
# Runs from the shipped model that began at most at the first number ended between the other two; the unit is the middle
# of the range that is expected of a new model. Measured on eight texts, for one minute: docs/fine-tuning.md.
_ENDS = ((1.0, 0.7, 0.9), (1.6, 0.88, 1.03))


@dataclass(frozen=True)
class ShippedStart:
    """The shipped model's bits per byte on the held-out text, before training on any of it."""

    name: str
    bits_per_byte: float

    def outcome(self, expected: ExpectedRange | None) -> str:
        """What to expect of --from, beside a new run with this range; None if that is not known."""
        if expected is None:
            return f"--from {self.name} begins at {self.bits_per_byte:.2f} bits per byte"
        middle = (expected.low + expected.high) / 2
        for most, low, high in _ENDS:
            if self.bits_per_byte <= most * middle:
                ends = ExpectedRange(low * middle, high * middle)
                return f"{ends} with --from {self.name}, which begins at {self.bits_per_byte:.2f}"
        return f"--from {self.name} is not expected to help: it begins at {self.bits_per_byte:.2f}"


def measure_shipped(corpus: Corpus) -> ShippedStart | None:
    """The shipped model on the beginning of the held-out text; None without one, and for chat logs and token files."""
    shipped = find_shipped(None)
    if shipped is None or not corpus.validation_bytes:
        return None
    if corpus.is_chat_log or not corpus.has_text or not corpus.tokenizer.is_lossless:
        return None
    share = _BYTES / corpus.validation_bytes
    text = corpus.tokenizer.decode(corpus.validation[: max(2, int(share * len(corpus.validation)))].tolist())
    checkpoint = load_model(shipped.directory, "cpu").checkpoint
    tokenizer = checkpoint.tokenizer
    ids = [tokenizer.end_of_text, *tokenizer.encode(text)]
    found = evaluate(checkpoint.model, ids, token_lengths=tokenizer.token_lengths)
    return ShippedStart(shipped.name, found.bits_per_byte)
