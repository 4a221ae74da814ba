"""The data types that all benchmarks share: data files, options, metrics and results."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from minigpt.evaluation.perplexity import WindowProgress
from minigpt.model.gpt import GPT
from minigpt.tokenizer.tokenizer import Tokenizer

Unit = Literal["share", "perplexity", "bits per byte"]


@dataclass(frozen=True)
class DataFile:
    """One file of a benchmark and the name to show; `member` is the file to read in a .zip."""

    path: Path
    name: str
    member: str | None = None

    @property
    def is_text(self) -> bool:
        """Whether it is plain text, compressed or not."""
        return self.path.name.removesuffix(".gz").removesuffix(".bz2").endswith(".txt")


@dataclass(frozen=True, kw_only=True)
class BenchmarkOptions:
    """How to run a benchmark.

    `limit` is the number of examples, from the first; None means all. `context` is the most tokens that the model sees
    (default: its context length). `stride` is that of `evaluate` (default: half the context); only perplexities use it.
    `detokenize` undoes the tokenization of a published text.
    """

    context: int | None = None
    stride: int | None = None
    batch_size: int | None = None
    limit: int | None = None
    detokenize: bool = False
    progress: WindowProgress | None = None


@dataclass(frozen=True)
class Metric:
    """One metric: its key, its title, its value and unit, and one sentence on how it is measured."""

    name: str
    title: str
    value: float
    unit: Unit
    protocol: str


@dataclass(frozen=True)
class BenchmarkResult:
    """The metrics of a model on a benchmark.

    `examples` is their number, `example_name` what they are called ("questions"). `caveats` say how this measurement
    differs from the published protocol.
    """

    benchmark: str
    data: tuple[str, ...]
    examples: int
    example_name: str
    metrics: tuple[Metric, ...]
    caveats: tuple[str, ...]


BenchmarkFunction = Callable[[str, GPT, Tokenizer, list[DataFile], BenchmarkOptions], BenchmarkResult]


def benchmark_result(
    benchmark: str,
    files: Sequence[DataFile],
    options: BenchmarkOptions,
    examples: tuple[int, int],
    example_name: str,
    metrics: Iterable[Metric],
    *,
    caveats: Iterable[str] = (),
    published: int | None = None,
    truncated: Sequence[bool] = (),
) -> BenchmarkResult:
    """The result on `examples`, (measured, available), with the caveats that all benchmarks share before its own.

    These are a limit, a file with another number of examples than the `published` one, and `truncated` texts.
    """
    measured, available = examples
    shared = []
    if measured < available:
        shared.append(f"the first {options.limit:,} {example_name}{' of each file' * (len(files) > 1)} only")
    if published is not None and available != published:
        shared.append(f"a file of {available:,} {example_name}, the published one has {published:,}")
    if any(truncated):
        cut = f"{sum(truncated):,} of {len(truncated):,} texts"
        shared.append(f"{cut} cut at the front to {options.context} tokens")
    names = tuple(data.name for data in files)
    return BenchmarkResult(benchmark, names, measured, example_name, tuple(metrics), (*shared, *caveats))
