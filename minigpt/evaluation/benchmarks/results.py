"""What every benchmark takes and gives; it knows none of them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from minigpt.evaluation.perplexity import Progress
from minigpt.model.gpt import GPT
from minigpt.tokenizer.tokenizer import Tokenizer

Unit = Literal["share", "perplexity", "bits per byte"]


@dataclass(frozen=True)
class Data:
    """One file of a benchmark: where it lies, and what to call it; `member` is the file meant in a .zip."""

    path: Path
    name: str
    member: str | None = None


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a benchmark is run. `limit` is how many of its examples are taken, from the first; None is all.

    `context` is the most tokens that the model is shown, by default its own context, and `stride` is `evaluate`'s, by
    default half of that; only perplexities slide. `detokenize` undoes the tokenization that a text was published in.
    """

    context: int | None = None
    stride: int | None = None
    batch_size: int | None = None
    limit: int | None = None
    detokenize: bool = False
    progress: Progress | None = None


@dataclass(frozen=True)
class Metric:
    """One figure: its key, what it is called, its value and unit, and how it was come by, in a sentence."""

    name: str
    title: str
    value: float
    unit: Unit
    protocol: str


@dataclass(frozen=True)
class Result:
    """What a model came to on a benchmark; `examples` counts what there is of `kind`, in words.

    `caveats` are what sets this measurement apart from the published protocol, in a few words each.
    """

    benchmark: str
    data: tuple[str, ...]
    examples: int
    kind: str
    metrics: tuple[Metric, ...]
    caveats: tuple[str, ...]

    def metric(self, name: str) -> Metric:
        """The figure of that key."""
        return next(metric for metric in self.metrics if metric.name == name)


Run = Callable[[GPT, Tokenizer, list[Data], Options], Result]


def caveats(options: Options, examples: int, kind: str, *, cut: int = 0, of: int = 0, context: int = 0) -> list[str]:
    """That not all examples were taken, or that `cut` sequences `of` so many were longer than the context."""
    found = []
    if options.limit is not None and examples >= options.limit:
        found.append(f"the first {examples:,} {kind} only")
    if cut:
        found.append(f"{cut:,} of {of:,} texts cut at the front to {context} tokens")
    return found
