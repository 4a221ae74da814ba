"""The results of `minigpt evaluate` as tables and as records for JSON."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from minigpt.cli.render.result_table import ResultTable
from minigpt.config import scored_text_of
from minigpt.storage.run_log import replace_nonfinite
from minigpt.tokenizer.display import visible
from minigpt.units import count, shown_loss, shown_perplexity

if TYPE_CHECKING:
    from minigpt.evaluation.breakdown import Breakdown

_MOST_DOCUMENTS = 20  # in a table; --json has all
_BAR = 24  # characters: the table fits a terminal of 60


@dataclass(frozen=True)
class TextResult:
    """The evaluation of texts, under a title.

    `labels` are the names of the documents, `protocol` says which tokens of whole texts are scored, and `notes` are
    sentences below the table. With another `loss_on` than all, only the tokens of one speaker are scored.
    """

    title: str
    labels: Sequence[str]
    parts: "Breakdown"
    loss_on: str = "all"
    protocol: str = "every token scored once, the first after an end-of-text"
    notes: Sequence[str] = ()

    def record(self) -> dict[str, Any]:
        """The entries for JSON."""
        whole, parts = self.parts.whole, self.parts
        documents = [(name, parts.document(number)) for number, name in enumerate(self.labels)]
        record: dict[str, Any] = {
            "loss": whole.loss,
            **replace_nonfinite({"perplexity": whole.perplexity, "bits_per_byte": whole.bits_per_byte}),
            "tokens": whole.tokens,
            "bytes": whole.bytes,
            "context": whole.context,
            "stride": whole.stride,
            "documents": [
                {"name": name, "tokens": part.tokens, "bytes": part.bytes}
                | replace_nonfinite({"loss": part.loss, "bits_per_byte": part.bits_per_byte})
                for name, part in documents
            ],
        }
        if n_positions := parts.n_positions:
            losses, counts = (
                parts.position_losses()[:n_positions].tolist(),
                parts.position_tokens[:n_positions].tolist(),
            )
            record["position_losses"] = [loss if n else None for loss, n in zip(losses, counts, strict=True)]
            record["position_tokens"] = counts
        return record

    def tables(self, tokenizer: str) -> list[ResultTable]:
        """The results for all documents, by document, and by position; `tokenizer` is its name."""
        whole, scored_text = self.parts.whole, scored_text_of(self.loss_on)
        scored = f"tokens {scored_text} are scored, each once" if scored_text else self.protocol
        rows = [
            ("loss", shown_loss(whole.loss), "nats per token"),
            ("perplexity", shown_perplexity(whole.perplexity), f"per token ({tokenizer})"),
            ("bits per byte", _number(whole.bits_per_byte), scored_text),
        ]
        protocol = (
            f"protocol: {count(whole.tokens, 'token')}, {count(whole.bytes, 'byte')}; context {whole.context}, "
            f"stride {whole.stride}; {scored}"
        )
        tables = [ResultTable(self.title, ("measure", " value", "unit"), rows, [protocol, *self.notes])]
        if len(self.labels) > 1:
            tables.append(_document_table(self.labels, self.parts))
        if len(self.parts.position_tokens):
            tables.append(_position_table(self.parts))
        return tables


def _document_table(labels: Sequence[str], parts: "Breakdown") -> ResultTable:
    """The documents by bits per byte; if there are many, only the first and last of them."""
    documents = [(name, parts.document(number)) for number, name in enumerate(labels)]
    # A document whose only scored token is its end-of-text has no bytes: it comes last.
    documents.sort(key=lambda each: each[1].bits_per_byte if each[1].bytes else -1.0, reverse=True)
    title = f"{len(documents):,} documents, the hardest to predict first"
    notes = ["each document is predicted after the end of the previous one, as in training"]
    if len(documents) > _MOST_DOCUMENTS:
        half = _MOST_DOCUMENTS // 2
        notes.append(f"the {half} hardest and the {half} easiest of {len(documents):,}; --json has them all")
        documents = documents[:half] + documents[-half:]
    rows = [
        (visible(name), f"{part.tokens:,}", f"{part.bytes:,}", _number(part.loss), _number(part.bits_per_byte))
        for name, part in documents
    ]
    return ResultTable(title, ("document", " tokens", " bytes", " loss", " bits per byte"), rows, notes)


def _position_table(parts: "Breakdown") -> ResultTable:
    """The loss by the number of preceding tokens, in ranges that double, with bars of the loss above the lowest."""
    nats, counts = parts.position_nats, parts.position_tokens
    n_positions = parts.n_positions
    ranges: list[tuple[str, float, int]] = []
    start, size = 0, 1
    while start < n_positions:
        end = min(start + size, n_positions)
        name = f"{start + 1}" if end == start + 1 else f"{start + 1} to {end}"
        if n_tokens := int(counts[start:end].sum()):
            ranges.append((name, float(nats[start:end].sum()) / n_tokens, n_tokens))
        start, size = end, max(1, end)
    lowest = min(loss for _, loss, _ in ranges)
    span = max(loss for _, loss, _ in ranges) - lowest
    rows = [
        (name, shown_loss(loss), f"{n_tokens:,}", "█" * round(_BAR * (loss - lowest) / span) if span else "")
        for name, loss, n_tokens in ranges
    ]
    notes = [
        "all positions of every window count, also of tokens that another window scores",
        f"bars: loss above the lowest row, at most {shown_loss(span)} nats",
    ]
    return ResultTable("loss by position in the window", ("tokens before", " loss", " tokens", ""), rows, notes)


def _number(value: float) -> str:
    """The value with four decimals, or a dash for NaN."""
    return "-" if math.isnan(value) else shown_loss(value)
