"""The data types that all benchmarks share: data files, options, metrics and results."""

from collections.abc import Callable
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


BenchmarkFunction = Callable[[GPT, Tokenizer, list[DataFile], BenchmarkOptions], BenchmarkResult]


def common_caveats(
    examples: int,
    available: int,
    example_name: str,
    *,
    published: int | None = None,
    truncated: int = 0,
    texts: int = 0,
    context: int = 0,
) -> list[str]:
    """The caveats of fewer examples than the file has available, of a file with another number of them than the
    published one, and of `truncated` among `texts` that exceed the context.
    """
    caveats = []
    if examples < available:
        caveats.append(f"the first {examples:,} {example_name} only")
    if published is not None and available != published:
        caveats.append(f"a file of {available:,} {example_name}, the published one has {published:,}")
    if truncated:
        caveats.append(f"{truncated:,} of {texts:,} texts cut at the front to {context} tokens")
    return caveats
