"""The results of benchmarks as tables and as records for JSON."""

from typing import Any

from minigpt.benchmarks.published_results import SIZES, nearest_size, published_results
from minigpt.benchmarks.results import BenchmarkResult
from minigpt.cli.render.result_table import ResultTable
from minigpt.storage.run_log import replace_nonfinite
from minigpt.tokenizer.display import visible
from minigpt.units import shown_loss, shown_perplexity


def benchmark_record(result: BenchmarkResult, n_parameters: int, tokenizer: str) -> dict[str, Any]:
    """The result of a benchmark and the published ones, for JSON."""
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


def benchmark_table(result: BenchmarkResult, n_parameters: int, tokenizer: str) -> ResultTable:
    """The result of a benchmark next to those published for the GPT-2 closest in size."""
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


def _metric_value(value: float, unit: str) -> str:
    if unit == "share":
        return f"{100 * value:.2f} %"
    return shown_perplexity(value) if unit == "perplexity" else shown_loss(value)
