"""The results of `minigpt evaluate` as tables and as records for JSON."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from minigpt.cli.render.result_table import ResultTable
from minigpt.config import scored_text_of
from minigpt.storage.run_log import replace_nonfinite
from minigpt.tokenizer.display import visible
from minigpt.units import count, shown_perplexity

if TYPE_CHECKING:
    from minigpt.benchmarks.results import BenchmarkResult
    from minigpt.evaluation.breakdown import Breakdown
    from minigpt.evaluation.perplexity import EvaluationResult
    from minigpt.storage.run_record import Result

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
            ("loss", f"{whole.loss:.4f}", "nats per token"),
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


def recorded_text(
    result: "Result | None", trained_on: str, context: int, measured: "EvaluationResult", loss_on: str
) -> str:
    """What a run recorded of its held-out part when it ended, to compare with what is `measured` now.

    The recorded losses are of the turns `trained_on`, in windows of `context` tokens without overlap; what is measured
    now are the turns `loss_on`.
    """
    if result is None or result.validation_loss is None or result.bits_per_byte is None:
        return "the run recorded no figure at its end to compare with"
    scored = result.validation_tokens or measured.tokens
    if loss_on != trained_on:
        on = f"on {count(scored, 'token')} {scored_text_of(trained_on) or 'of all turns'}"
    else:
        on = "on the same tokens" if scored == measured.tokens else f"on {scored:,} of these tokens"
    if (measured.context, measured.stride) != (context, context):
        on += f", in windows of {context} without overlap"
    return f"at the end of training: loss {result.validation_loss:.4f}, {result.bits_per_byte:.4f} bits per byte, {on}"


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
        (name, f"{loss:.4f}", f"{n_tokens:,}", "█" * round(_BAR * (loss - lowest) / span) if span else "")
        for name, loss, n_tokens in ranges
    ]
    notes = [
        "all positions of every window count, also of tokens that another window scores",
        f"bars: loss above the lowest row, at most {span:.4f} nats",
    ]
    return ResultTable("loss by position in the window", ("tokens before", " loss", " tokens", ""), rows, notes)


def benchmark_record(result: "BenchmarkResult", n_parameters: int, tokenizer: str) -> dict[str, Any]:
    """The result of a benchmark and the published ones, for JSON."""
    from minigpt.benchmarks.published_results import nearest_size, published_results

    return {
        "benchmark": result.benchmark,
        "data": list(result.data),
        result.example_name: result.examples,
        "metrics": {
            metric.name: replace_nonfinite({"value": metric.value, "unit": metric.unit, "protocol": metric.protocol})
            for metric in result.metrics
        },
        "caveats": list(result.caveats),
        "published": [
            {
                "model": each.model,
                "metric": each.metric,
                "value": each.value,
                "source": each.source,
                "same_protocol": not (each.difference or result.caveats),
                "differs": [*([each.difference] if each.difference else []), *result.caveats],
            }
            for each in published_results(result.benchmark, nearest_size(n_parameters), tokenizer)
        ],
    }


def benchmark_table(result: "BenchmarkResult", n_parameters: int, tokenizer: str) -> ResultTable:
    """The result of a benchmark next to those published for the GPT-2 closest in size."""
    from minigpt.benchmarks.published_results import SIZES, nearest_size, published_results

    nearest = nearest_size(n_parameters)
    published = published_results(result.benchmark, nearest, tokenizer)
    published.sort(key=lambda each: bool(each.difference))
    no_difference = "only as noted below" if result.caveats else "none"
    rows = []
    for metric in result.metrics:
        cells = [
            (_metric_value(each.value, metric.unit), each.source, each.difference or no_difference)
            for each in published
            if each.metric == metric.name
        ] or [("", "", "")]
        own = (metric.title, _metric_value(metric.value, metric.unit))
        rows += [(*(own if number == 0 else ("", "")), *row) for number, row in enumerate(cells)]
    notes = [f"{metric.title}: {metric.protocol}" for metric in result.metrics]
    if result.caveats:
        notes.append(f"not directly comparable with published results: {'; '.join(result.caveats)}")
    notes.append(
        f"published: {nearest} ({SIZES[nearest]:,} parameters), the GPT-2 closest in size to this model "
        f"({n_parameters:,} parameters)"
    )
    title = f"{result.benchmark}, {result.examples:,} {result.example_name} of {visible(', '.join(result.data))}"
    return ResultTable(title, ("measure", " this model", " published", "source", "difference"), rows, notes, remarks=2)


def _number(value: float) -> str:
    """The value with four decimals, or a dash for NaN."""
    return "-" if math.isnan(value) else f"{value:.4f}"


def _metric_value(value: float, unit: str) -> str:
    if unit == "share":
        return f"{100 * value:.2f} %"
    return shown_perplexity(value) if unit == "perplexity" else f"{value:.4f}"
