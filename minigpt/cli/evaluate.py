"""`minigpt evaluate`: measures a model on text files and on published benchmarks."""

import difflib
import glob
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minigpt.cli.models import open_model, out_of_memory_as
from minigpt.cli.options import CheckpointsOption, DeviceOption, JsonOption, ModelArgument, settings_options
from minigpt.cli.render.terminal import write
from minigpt.cli.text_evaluation import OUT_OF_MEMORY, evaluate_held_out, evaluate_texts, training_context
from minigpt.config import ReadingConfig, TrainConfig
from minigpt.errors import ConfigError, DataError, GenerationError, quoted

if TYPE_CHECKING:
    from minigpt.benchmarks.results import BenchmarkOptions
    from minigpt.cli.render.result_table import ResultTable
    from minigpt.storage.checkpoint import Checkpoint


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
        int | None, typer.Option(help="tokens by which the window advances [default: half the context]", min=1)
    ] = None,
    context: Annotated[
        int | None, typer.Option("--context-length", help="tokens in the window [default: the model's]")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="windows or examples evaluated together [default: about 8,000 tokens]", min=1)
    ] = None,
    limit: Annotated[int | None, typer.Option(help="evaluate only the first N documents or examples", min=1)] = None,
    by_position: Annotated[
        bool, typer.Option("--by-position", help="also show the loss by position in the window")
    ] = False,
    data: Annotated[
        Path | None, typer.Option(help="read the benchmark from this file or folder instead of the hub")
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

    from minigpt.benchmarks.results import BenchmarkOptions
    from minigpt.benchmarks.suite import BENCHMARKS, find_data
    from minigpt.evaluation.perplexity import resolve_protocol

    texts = texts or []
    names = [text for text in texts if text in BENCHMARKS and (data is not None or not Path(text).exists())]
    sources = [text for text in texts if text not in names]
    for source in sources:
        _check_source(source, list(BENCHMARKS))
    chosen, has_text = [BENCHMARKS[name] for name in names], bool(sources or held_out)
    named, unread = " and ".join(names), " and ".join(f"--{name}".replace("_", "-") for name in given)
    for is_wrong, message in (
        (not texts and not held_out, "there is no text to evaluate; give a text file, a benchmark or --held-out"),
        (held_out and names, f"--held-out cannot be combined with {named}; evaluate them one by one"),
        (
            held_out and limit is not None,
            f"--limit {limit} cannot be combined with --held-out, which evaluates all of it",
        ),
        (data is not None and not names, "--data is only for benchmarks; name one"),
        (by_position and not has_text, "--by-position is only for texts; name one"),
        (given and not sources, f"{unread} can only be given with a text; name one"),
        (loss_on is not None and not has_text, f"--loss-on {loss_on} is only for chat logs; name one"),
        (
            stride is not None and not has_text and not any(each.uses_stride for each in chosen),
            f"--stride has no effect on {named}, whose examples are separate",
        ),
        (
            detokenize and not any(each.is_tokenized for each in chosen),
            "--detokenize is only for wikitext2, wikitext103, ptb and cbt",
        ),
        (as_json and markdown, "--json and --markdown exclude each other; pass one of them"),
    ):
        if is_wrong:
            raise ConfigError(message)

    checkpoint = open_model(model, checkpoints, device)
    config = checkpoint.model.config
    if context is None:
        context = (held_out and training_context(checkpoint)) or config.n_positions
    if stride is None:
        stride = context if held_out else max(1, min(context, config.n_positions) // 2)
    resolve_protocol(config, context, stride)
    options = BenchmarkOptions(
        context=context, stride=stride, batch_size=batch_size, limit=limit, detokenize=detokenize
    )
    files = {name: find_data(name, data) for name in names}  # the hub shows its own progress
    record: dict[str, Any] = {"model": str(checkpoint.directory), "tokenizer": checkpoint.tokenizer.name}
    show: Callable[..., None] = (lambda *_: None) if as_json else _table_printer(markdown=markdown)
    if has_text:
        if held_out:
            text = evaluate_held_out(checkpoint, sources, given, options, by_position, loss_on)
        else:
            text = evaluate_texts(checkpoint, sources, reading, options, by_position, loss_on or "all")
        if names:
            record["text"] = text.record()
        else:
            record = {**text.record(), **record} | ({"held_out": True} if held_out else {})
        if text.loss_on != "all":
            record["loss_on"] = text.loss_on
        show(*text.tables(checkpoint.tokenizer.name))
    try:
        if names:
            record |= {"parameters": config.n_parameters, "benchmarks": []}
            _run_benchmarks(checkpoint, files, options, record["benchmarks"], show)
    finally:  # the results before an error or Ctrl-C took minutes: they are printed too
        if as_json and (has_text or record["benchmarks"]):
            write(json.dumps(record))


def _run_benchmarks(
    checkpoint: "Checkpoint",
    files: Mapping[str, Any],
    options: "BenchmarkOptions",
    records: list[dict[str, Any]],
    show: Callable[..., None],
) -> None:
    """Runs the benchmarks whose data these are; shows each result, and appends it to the records."""
    from minigpt.benchmarks.suite import run_benchmark
    from minigpt.cli.render.console import console, progress_bar
    from minigpt.cli.render.evaluation import benchmark_record, benchmark_table

    model, tokenizer = checkpoint.model, checkpoint.tokenizer
    for name, data in files.items():
        with progress_bar(console(), name) as report, out_of_memory_as(GenerationError(OUT_OF_MEMORY)):
            result = run_benchmark(name, model, tokenizer, replace(options, progress=report), data=data)
        records.append(benchmark_record(result, model.config.n_parameters, tokenizer.name))
        show(benchmark_table(result, model.config.n_parameters, tokenizer.name))


def _table_printer(*, markdown: bool) -> "Callable[..., None]":
    """A function that prints tables, as text or as Markdown, with an empty line between two of them."""
    from minigpt.cli.render.console import console

    out, is_first = console(stderr=False), True

    def show(*tables: "ResultTable") -> None:
        nonlocal is_first
        for table in tables:
            if not is_first:
                write("")
            is_first = False
            if markdown:
                write(table.markdown())
            else:
                out.print(table)

    return show


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
