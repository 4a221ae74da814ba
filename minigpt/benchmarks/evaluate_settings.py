"""Published benchmarks as arguments of `minigpt evaluate`."""

import difflib
import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minigpt.cli.evaluate_settings import EvaluateSettings, Measurement
from minigpt.errors import ConfigError, DataError, GenerationError, quoted
from minigpt.settings import setting

if TYPE_CHECKING:
    from minigpt.benchmarks.results import DataFile
    from minigpt.cli.render.result_table import ResultTable
    from minigpt.evaluation.perplexity import Windows
    from minigpt.storage.checkpoint import Checkpoint


@dataclass(frozen=True, kw_only=True)
class BenchmarkSettings(EvaluateSettings):
    """Settings of published benchmarks."""

    data: Path | None = setting(  # noqa: RUF009
        None, "read the benchmark from this file, folder or pipe (-) instead of the hub", common=True
    )
    detokenize: bool = setting(False, "undo the tokenization of the published wikitext, ptb and cbt")

    texts_help = f"{EvaluateSettings.texts_help}; or benchmarks: lambada, hellaswag, wikitext2, wikitext103, ptb, cbt"

    @property
    def kinds(self) -> list[str]:
        return [*super().kinds, "a benchmark"]

    def names_in(self, arguments: Sequence[str]) -> list[str]:
        from minigpt.benchmarks.suite import BENCHMARKS

        names = [each for each in arguments if each in BENCHMARKS and (self.data or not Path(each).exists())]
        for each in arguments:
            if each not in names:
                _check_text(each, list(BENCHMARKS))
        return [*super().names_in(arguments), *names]

    def check_together(self, names: Sequence[str], *, has_text: bool) -> None:
        from minigpt.benchmarks.suite import BENCHMARKS

        super().check_together(names, has_text=has_text)
        chosen = [BENCHMARKS[name] for name in names if name in BENCHMARKS]
        if self.data is not None and not chosen:
            raise ConfigError("--data is only for benchmarks; name one")
        if self.stride is not None and not has_text and not any(each.uses_stride for each in chosen):
            raise ConfigError(f"--stride has no effect on {' and '.join(names)}, whose examples are separate")
        if self.detokenize and not any(each.is_tokenized for each in chosen):
            raise ConfigError("--detokenize is only for wikitext2, wikitext103, ptb and cbt")

    def prepare(self, names: Sequence[str]) -> list[Measurement]:
        from minigpt.benchmarks.files import piped_data
        from minigpt.benchmarks.suite import BENCHMARKS, find_data

        own = [name for name in names if name in BENCHMARKS]
        piped = piped_data() if own and str(self.data) == "-" else []
        files = {name: piped or find_data(name, self.data) for name in own}  # the hub shows its own progress
        measured = [partial(_measure, files, self.detokenize)] if files else []
        return [*super().prepare(names), *measured]


def _measure(
    files: "Mapping[str, list[DataFile]]",
    detokenize: bool,
    checkpoint: "Checkpoint",
    windows: "Windows",
    record: dict[str, Any],
) -> "Iterator[ResultTable]":
    """Runs the benchmarks whose data these are."""
    from minigpt.benchmarks.drawing import benchmark_record, benchmark_table
    from minigpt.benchmarks.results import BenchmarkOptions
    from minigpt.benchmarks.suite import run_benchmark
    from minigpt.cli.models import out_of_memory_as
    from minigpt.cli.render.console import console, progress_bar
    from minigpt.cli.text_evaluation import OUT_OF_MEMORY

    model, tokenizer = checkpoint.model, checkpoint.tokenizer
    n_parameters = model.config.n_parameters
    record |= {"parameters": n_parameters, "benchmarks": []}
    for name, data in files.items():
        with progress_bar(console(), name) as report, out_of_memory_as(GenerationError(OUT_OF_MEMORY)):
            options = BenchmarkOptions(
                context=windows.context, stride=windows.stride, batch_size=windows.batch_size, limit=windows.limit,
                detokenize=detokenize, progress=report,
            )  # fmt: skip
            result = run_benchmark(name, model, tokenizer, options, data=data)
        record["benchmarks"].append(benchmark_record(result, n_parameters, tokenizer.name))
        yield benchmark_table(result, n_parameters, tokenizer.name)


def _check_text(source: str, benchmarks: list[str]) -> None:
    """Raises: DataError for a name that is neither a file nor a benchmark, with a suggestion for a mistyped one."""
    exists = os.path.exists(source)  # noqa: PTH110  (Path.exists raises for a name that is too long)
    if source == "-" or exists or glob.has_magic(source):
        return
    known = f"a benchmark ({', '.join(benchmarks)})"
    close = difflib.get_close_matches(source.lower(), benchmarks, n=1)
    if close:
        raise DataError(f"{source!r} is neither a file nor {known}; did you mean {close[0]!r}?")
    if not Path(source).suffix and "/" not in source:
        raise DataError(f"{quoted(source)} is neither a file nor {known}")
