"""How evaluations look: as tables for the terminal or in Markdown, and as records for JSON."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from minigpt.cli.render.units import count
from minigpt.tokenizer.display import visible

if TYPE_CHECKING:
    import numpy as np

    from minigpt.data.sources import Scan
    from minigpt.evaluation.benchmarks.results import Result
    from minigpt.evaluation.breakdown import Breakdown
    from minigpt.evaluation.perplexity import Evaluation

_MOST_ROWS = 20  # of documents in a table; --json has all
_BAR = 24  # characters: the table has room in a terminal of 60
_WIDE = 100  # characters: in less, what differs would be a column of single words


@dataclass(frozen=True)
class Sheet:
    """A table under a title, with sentences below it; a column whose name begins with a space is of numbers.

    The last so many columns are `remarks`, which become numbered sentences where a terminal is narrow.
    """

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    notes: list[str] = field(default_factory=list)
    remarks: int = 0

    def rich(self, width: int) -> RenderableType:
        """For a terminal so many characters wide."""
        narrow = width < _WIDE
        if narrow and self.remarks:
            return self._remarked_below().rich(width)
        padding = (0, 1 if narrow else 3, 0, 0)
        table = Table(title=Text(self.title, style="bold"), title_justify="left", box=None, padding=padding)
        for column in self.columns:
            number = column.startswith(" ")
            table.add_column(
                column.strip(), justify="right" if number else "left", no_wrap=number, overflow="fold", style=None
            )
        for row in self.rows:
            table.add_row(*map(Text, row))
        return Group(table, *(Text(note, style="dim") for note in self.notes))

    def _remarked_below(self) -> "Sheet":
        """The same, its remarks as numbered notes."""
        kept = len(self.columns) - self.remarks
        rows: list[tuple[str, ...]] = []
        below: list[str] = []
        for row in self.rows:
            said = [f"{name}: {cell}" for name, cell in zip(self.columns[kept:], row[kept:], strict=True) if cell]
            if said:
                below.append(f"({len(below) + 1}) {'; '.join(said)}")
            rows.append((*row[:kept], f"({len(below)})" if said else ""))
        return Sheet(self.title, (*self.columns[:kept], " note"), rows, [*below, *self.notes])

    def markdown(self) -> str:
        """For a document."""

        def line(cells: Sequence[str]) -> str:
            return "| " + " | ".join(cell.strip().replace("|", "\\|") for cell in cells) + " |"

        rules = ["---:" if column.startswith(" ") else "---" for column in self.columns]
        table = [line(self.columns), line(rules), *map(line, self.rows)]
        return "\n".join(
            [f"**{self.title}**", "", *table, *(["", *(f"- {note}" for note in self.notes)] if self.notes else [])]
        )


@contextmanager
def progress(out: Console, what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar that is told (done, total); it vanishes when done, and only a terminal has it."""
    if not out.is_terminal:
        yield lambda *_: None
        return
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=out, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def document_labels(found: "Scan") -> list[str]:
    """What to call each document: its file, and its number there where a file has several."""
    if found.n_documents == 1:
        return [found.files[0].name]
    labels = []
    for file in found.files:
        count = sum(ends for _, ends in replace(found, files=(file,)).pieces())
        labels += [file.name] if count == 1 else [f"{file.name} #{number}" for number in range(1, count + 1)]
    return labels


def first_documents(stream: "np.ndarray", end_of_text: int, count: int) -> "np.ndarray":
    """The stream up to the end of its `count`th document."""
    import numpy as np

    return stream[: int(np.flatnonzero(stream == end_of_text)[count - 1]) + 1]


def _finite(value: float) -> float | None:
    """JSON has no infinity and no nan."""
    return value if math.isfinite(value) else None


def _document_record(name: str, part: "Evaluation") -> dict[str, Any]:
    return {
        "name": name,
        "tokens": part.tokens,
        "bytes": part.bytes,
        "loss": _finite(part.loss),
        "bits_per_byte": _finite(part.bits_per_byte),
    }


def text_record(labels: Sequence[str], parts: "Breakdown") -> dict[str, Any]:
    """The figures of texts, as data."""
    whole = parts.whole
    record: dict[str, Any] = {
        "loss": whole.loss,
        "perplexity": _finite(whole.perplexity),
        "bits_per_byte": _finite(whole.bits_per_byte),
        "tokens": whole.tokens,
        "bytes": whole.bytes,
        "context": whole.context,
        "stride": whole.stride,
        "documents": [_document_record(name, parts.document(number)) for number, name in enumerate(labels)],
    }
    if len(parts.position_tokens):
        measured = parts.position_tokens > 0
        record["position_losses"] = parts.position_losses()[measured].tolist()
        record["position_tokens"] = parts.position_tokens[measured].tolist()
    return record


def text_sheets(labels: Sequence[str], parts: "Breakdown", tokenizer: str, limit: int | None) -> list[Sheet]:
    """The figures of texts, as tables."""
    whole = parts.whole
    sheet = Sheet(
        "all of the text" if limit is None else f"the first {count(len(labels), 'document')}",
        ("measure", " value", "unit"),
        [
            ("loss", f"{whole.loss:.4f}", "nats per token"),
            ("perplexity", f"{whole.perplexity:,.2f}", f"per token ({tokenizer})"),
            ("bits per byte", _figure(whole.bits_per_byte), ""),
        ],
        [
            f"protocol: {whole.tokens:,} tokens, {whole.bytes:,} bytes; context {whole.context}, stride {whole.stride};"
            " every token scored once, the first behind an end of text"
        ],
    )
    sheets = [sheet]
    if len(labels) > 1:
        sheets.append(_documents_sheet(labels, parts))
    if len(parts.position_tokens):
        sheets.append(_positions_sheet(parts))
    return sheets


def _figure(value: float) -> str:
    """A figure to four places, or a dash where there is none."""
    return "-" if math.isnan(value) else f"{value:.4f}"


def _documents_sheet(labels: Sequence[str], parts: "Breakdown") -> Sheet:
    """The documents, the hardest first; of many those at both ends."""
    found = [(name, parts.document(number)) for number, name in enumerate(labels)]
    # A document whose only scored token is its end has no bytes: it comes last.
    found.sort(key=lambda each: each[1].bits_per_byte if each[1].bytes else -1.0, reverse=True)
    title = f"{len(found):,} documents, the hardest to predict first"
    notes = ["a document is read behind the end of the one before it, as in training"]
    if len(found) > _MOST_ROWS:
        half = _MOST_ROWS // 2
        notes.append(f"the {half} hardest and the {half} easiest of {len(found):,}; --json has them all")
        found = found[:half] + found[-half:]
    rows = [
        (visible(name), f"{part.tokens:,}", f"{part.bytes:,}", f"{part.loss:.4f}", _figure(part.bits_per_byte))
        for name, part in found
    ]
    return Sheet(title, ("document", " tokens", " bytes", " loss", " bits per byte"), rows, notes)


def _positions_sheet(parts: "Breakdown") -> Sheet:
    """The loss against the tokens before, in ranges that double, and a bar for what context has not yet gained."""
    nats, counts = parts.position_nats, parts.position_tokens
    ranges: list[tuple[str, float, int]] = []
    start, size = 0, 1
    while start < len(counts) and counts[start]:
        end = min(start + size, len(counts))
        n_tokens = int(counts[start:end].sum())
        name = f"{start + 1}" if end == start + 1 else f"{start + 1} to {end}"
        ranges.append((name, float(nats[start:end].sum()) / n_tokens, n_tokens))
        start, size = end, max(1, end)
    lowest = min(loss for _, loss, _ in ranges)
    span = max(loss for _, loss, _ in ranges) - lowest
    rows = [
        (name, f"{loss:.4f}", f"{n_tokens:,}", "█" * round(_BAR * (loss - lowest) / span) if span else "")
        for name, loss, n_tokens in ranges
    ]
    notes = [
        "every window at all of its positions, whether or not another has scored the token",
        f"bars: nats above the lowest row, {span:.4f} at most",
    ]
    return Sheet("loss by position in the window", ("tokens before", " loss", " tokens", ""), rows, notes)


def _value(value: float, unit: str) -> str:
    if unit == "share":
        return f"{100 * value:.2f} %"
    return f"{value:,.2f}" if unit == "perplexity" else f"{value:.4f}"


def benchmark_record(result: "Result", n_parameters: int) -> dict[str, Any]:
    """A benchmark's result and what was published, as data."""
    from minigpt.evaluation.benchmarks.published_results import nearest_size, published

    nearest = nearest_size(n_parameters)
    return {
        "benchmark": result.benchmark,
        "data": list(result.data),
        result.kind: result.examples,
        "metrics": {
            metric.name: {"value": _finite(metric.value), "unit": metric.unit, "protocol": metric.protocol}
            for metric in result.metrics
        },
        "caveats": list(result.caveats),
        "published": [
            {
                "model": each.model,
                "metric": each.metric,
                "value": each.figure,
                "source": each.source,
                "same_protocol": not (each.differs or result.caveats),
                "differs": [*([each.differs] if each.differs else []), *result.caveats],
            }
            for each in published(result.benchmark, nearest)
        ],
    }


def benchmark_sheet(result: "Result", n_parameters: int) -> Sheet:
    """A benchmark's result beside what was published of the GPT-2 nearest in size."""
    from minigpt.evaluation.benchmarks.published_results import SIZES, nearest_size, published

    nearest = nearest_size(n_parameters)
    known = published(result.benchmark, nearest)
    rows = []
    for metric in result.metrics:
        beside = [
            (
                _value(each.figure, metric.unit),
                each.source,
                each.differs or ("nothing but what is said below" if result.caveats else "nothing"),
            )
            for each in sorted(known, key=lambda each: bool(each.differs))
            if each.metric == metric.name
        ] or [("", "", "")]
        for number, cells in enumerate(beside):
            own = (metric.title, _value(metric.value, metric.unit)) if number == 0 else ("", "")
            rows.append((*own, *cells))
    notes = [f"{metric.title}: {metric.protocol}" for metric in result.metrics]
    if result.caveats:
        notes.append(f"this measurement: {'; '.join(result.caveats)}: not comparable as it stands")
    notes.append(
        f"published: of {nearest} ({SIZES[nearest]:,} parameters), the GPT-2 nearest in size to this model"
        f" ({n_parameters:,})"
    )
    title = f"{result.benchmark}, {result.examples:,} {result.kind} of {visible(', '.join(result.data))}"
    return Sheet(title, ("measure", " this model", " published", "by", "what differs"), rows, notes, remarks=2)
