"""`minigpt evaluate`: measures a model on text files and on published benchmarks."""

import difflib
import glob
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minigpt.cli.models import open_model, out_of_memory_as
from minigpt.cli.options import CheckpointsOption, DeviceOption, JsonOption, ModelArgument, settings_options
from minigpt.cli.render.terminal import write
from minigpt.cli.text_evaluation import OUT_OF_MEMORY, evaluate_held_out, evaluate_texts, training_context
from minigpt.config import ReadingConfig, TrainConfig, scored_text_of
from minigpt.errors import ConfigError, DataError, GenerationError, quoted

if TYPE_CHECKING:
    from rich.console import Console

    from minigpt.cli.render.result_table import ResultTable


@settings_options(
    (ReadingConfig, ("text_key", "encoding", "encoding_errors", "special_tokens")), (TrainConfig, ("loss_on",))
)
def evaluate(
    given: dict[str, Any],
    model: ModelArgument,
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            help="text files, folders or globs, or - for standard input; or benchmarks: lambada, hellaswag, wikitext2, "
            "wikitext103, ptb, cbt",
            metavar="TEXT...",
        ),
    ] = None,
    held_out: Annotated[
        bool,
        typer.Option(
            "--held-out",
            help="evaluate the held-out part of the training text, in the windows of training; "
            "give that text if it was moved",
        ),
    ] = False,
    stride: Annotated[
        int | None,
        typer.Option("--stride", help="tokens by which the window advances [default: half the context]", min=1),
    ] = None,
    context: Annotated[
        int | None, typer.Option("--context-length", help="tokens in the window [default: the model's]")
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            "--batch-size", help="windows or examples evaluated together [default: about 8,000 tokens]", min=1
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", help="evaluate only the first N documents or examples", min=1)
    ] = None,
    by_position: Annotated[
        bool, typer.Option("--by-position", help="also show the loss by position in the window")
    ] = False,
    data: Annotated[
        Path | None, typer.Option("--data", help="read the benchmark from this file or folder instead of the hub")
    ] = None,
    detokenize: Annotated[
        bool, typer.Option("--detokenize", help="undo the tokenization of the published wikitext, ptb and cbt")
    ] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="print Markdown tables instead of text")] = False,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
    checkpoints: CheckpointsOption = Path("checkpoints"),
) -> None:
    """Measure how well a model predicts texts: loss, perplexity and bits per byte; or run published benchmarks.

    A window moves over the texts, and every token is scored once. Benchmarks come from the Hugging Face hub or from
    `--data`; results are shown next to those published for the GPT-2 closest in size.

    Examples:

    - `minigpt evaluate moby_dick other_book.txt`

    - `minigpt evaluate moby_dick --held-out`

    - `minigpt evaluate gpt2 test.txt --stride 1024 --json`

    - `minigpt evaluate gpt2 lambada hellaswag`

    - `minigpt evaluate moby_dick wikitext2 --data wiki.test.raw --detokenize`
    """
    loss_on = given.pop("loss_on", None)
    reading = ReadingConfig(**given)

    from minigpt.cli.render import evaluation as render
    from minigpt.cli.render.console import console, progress_bar
    from minigpt.evaluation.benchmarks.results import BenchmarkOptions
    from minigpt.evaluation.benchmarks.suite import BENCHMARKS, find_data, run_benchmark
    from minigpt.evaluation.perplexity import resolve_protocol

    texts = texts or []
    names = [text for text in texts if text in BENCHMARKS and (data is not None or not Path(text).exists())]
    sources = [text for text in texts if text not in names]
    _refuse_if(not texts and not held_out, "there is no text to evaluate; give a text file, a benchmark or --held-out")
    _refuse_if(
        held_out and bool(names), f"--held-out cannot be combined with {' and '.join(names)}; evaluate them one by one"
    )
    _refuse_if(
        held_out and limit is not None, f"--limit {limit} cannot be combined with --held-out, which evaluates all of it"
    )
    for source in sources:
        _check_source(source, list(BENCHMARKS))
    chosen = [BENCHMARKS[name] for name in names]
    _refuse_if(data is not None and not names, "--data is only for benchmarks; name one")
    _refuse_if(by_position and not (sources or held_out), "--by-position is only for texts; name one")
    _refuse_if(
        bool(given) and not sources,
        f"{' and '.join(f'--{name}'.replace('_', '-') for name in given)} can only be given with a text; name one",
    )
    _refuse_if(
        loss_on is not None and not (sources or held_out), f"--loss-on {loss_on} is only for chat logs; name one"
    )
    _refuse_if(
        stride is not None and not (sources or held_out) and not any(each.uses_stride for each in chosen),
        f"--stride has no effect on {' and '.join(names)}, whose examples are separate",
    )
    _refuse_if(
        detokenize and not any(each.is_tokenized for each in chosen),
        "--detokenize is only for wikitext2, wikitext103, ptb and cbt",
    )
    _refuse_if(as_json and markdown, "--json and --markdown exclude each other; pass one of them")

    checkpoint = open_model(model, checkpoints, device)
    config = checkpoint.model.config
    trained_context = (held_out and training_context(checkpoint)) or config.n_positions
    if context is None:
        context = trained_context
    if stride is None:
        stride = context if held_out else max(1, min(context, config.n_positions) // 2)
    resolve_protocol(config, context, stride)
    options = BenchmarkOptions(
        context=context, stride=stride, batch_size=batch_size, limit=limit, detokenize=detokenize
    )
    notes = console()
    files = {name: find_data(name, data) for name in names}  # the hub shows its own progress

    printer = None if as_json else _TablePrinter(console(stderr=False), markdown=markdown)
    record: dict[str, Any] = {"model": str(checkpoint.directory), "tokenizer": checkpoint.tokenizer.name}
    if held_out:
        trained = checkpoint.record
        loss_on = loss_on or (trained.training.loss_on if trained and trained.training else "all")
        labels, parts = evaluate_held_out(checkpoint, sources, given, options, by_position, loss_on, notes)
        known = render.HeldOut(
            checkpoint.directory.name,
            trained.result if trained else None,
            trained_context,
            trained.training.scored_text if trained and trained.training else "",
        )
        record |= {"held_out": True, **render.text_record(labels, parts)}
        scored_text = scored_text_of(loss_on)
        if printer:
            printer.print(*render.text_tables(labels, parts, checkpoint.tokenizer.name, None, known, scored_text))
    elif sources:
        loss_on = loss_on or "all"
        labels, parts = evaluate_texts(checkpoint, sources, reading, options, by_position, loss_on, notes)
        text_record = render.text_record(labels, parts)
        if names:
            record["text"] = text_record
        else:
            record = {**text_record, **record}
        scored_text = scored_text_of(loss_on)
        if printer:
            printer.print(*render.text_tables(labels, parts, checkpoint.tokenizer.name, limit, None, scored_text))
    if loss_on not in (None, "all"):
        record["loss_on"] = loss_on
    if names:
        record |= {"parameters": config.n_parameters, "benchmarks": []}
    try:
        for name in names:
            with progress_bar(notes, name) as report, out_of_memory_as(GenerationError(OUT_OF_MEMORY)):
                result = run_benchmark(
                    name, checkpoint.model, checkpoint.tokenizer, replace(options, progress=report), data=files[name]
                )
            record["benchmarks"].append(render.benchmark_record(result, config.n_parameters, checkpoint.tokenizer.name))
            if printer:
                printer.print(render.benchmark_table(result, config.n_parameters, checkpoint.tokenizer.name))
    finally:  # the results before an error or Ctrl-C took minutes: they are printed too
        if as_json and (held_out or sources or record["benchmarks"]):
            write(json.dumps(record))


class _TablePrinter:
    """Prints each table when it is complete, as text or as Markdown, with an empty line between two of them."""

    def __init__(self, out: "Console", *, markdown: bool) -> None:
        self._out = out
        self._markdown = markdown
        self._is_first = True

    def print(self, *tables: "ResultTable") -> None:
        for table in tables:
            if not self._is_first:
                write("")
            self._is_first = False
            if self._markdown:
                write(table.markdown())
            else:
                self._out.print(table.rich(self._out.width))


def _refuse_if(is_wrong: bool, message: str) -> None:
    """Raises: ConfigError for an option that would have no effect, or cannot be combined with another."""
    if is_wrong:
        raise ConfigError(message)


def _check_source(source: str, benchmarks: list[str]) -> None:
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
