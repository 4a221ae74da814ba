"""`minigpt evaluate`: measures a model on text files and on published benchmarks."""

import difflib
import glob
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minigpt.cli.models import open_model
from minigpt.cli.options import CheckpointsOption, DeviceOption, JsonOption, settings_options
from minigpt.cli.render.terminal import note, write
from minigpt.config import ReadingConfig
from minigpt.errors import ConfigError, DataError

if TYPE_CHECKING:
    from rich.console import Console

    from minigpt.cli.render.result_table import ResultTable
    from minigpt.evaluation.benchmarks.results import BenchmarkOptions
    from minigpt.evaluation.breakdown import Breakdown
    from minigpt.storage.checkpoint import Checkpoint


@settings_options((ReadingConfig, ("text_key", "encoding_errors")))
def evaluate(
    given: dict[str, Any],
    model: Annotated[str, typer.Argument(help="a run's name, or a model's file or folder", metavar="MODEL")],
    texts: Annotated[
        list[str],
        typer.Argument(
            help="text files, folders or globs, or - for standard input; or benchmarks: lambada, hellaswag, wikitext2, "
            "wikitext103, ptb, cbt",
            metavar="TEXT...",
        ),
    ],
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

    The texts are one stream of documents, with an end-of-text before the first and after each. A window moves over the
    stream; every token is scored once, with at least context - stride tokens before it (fewer at the start).
    Benchmarks come from the Hugging Face hub or from `--data`. Each result is shown next to those published for
    the GPT-2 closest in size, with the differences in protocol.

    Examples:

    - `minigpt evaluate moby_dick other_book.txt`

    - `minigpt evaluate gpt2 test.txt --stride 1024 --json`

    - `minigpt evaluate gpt2 lambada hellaswag`

    - `minigpt evaluate moby_dick wikitext2 --data wiki.test.raw --detokenize`
    """
    reading = ReadingConfig(**given)

    from minigpt.cli.render import evaluation as render
    from minigpt.cli.render.console import console, progress_bar
    from minigpt.evaluation.benchmarks.results import BenchmarkOptions
    from minigpt.evaluation.benchmarks.suite import BENCHMARKS, find_data, run_benchmark
    from minigpt.evaluation.perplexity import resolve_protocol

    names = [text for text in texts if text in BENCHMARKS and not Path(text).exists()]
    sources = [text for text in texts if text not in names]
    for source in sources:
        _check_source(source, list(BENCHMARKS))
    chosen = [BENCHMARKS[name] for name in names]
    _refuse_if(data is not None and not names, "--data is only for benchmarks; name one")
    _refuse_if(by_position and not sources, "--by-position is only for texts; name one")
    _refuse_if(
        stride is not None and not sources and not any(each.uses_stride for each in chosen),
        f"--stride has no effect on {' and '.join(names)}, whose examples are separate",
    )
    _refuse_if(
        detokenize and not any(each.is_tokenized for each in chosen),
        "--detokenize is only for wikitext2, wikitext103, ptb and cbt",
    )
    _refuse_if(as_json and markdown, "--json and --markdown exclude each other; pass one of them")

    checkpoint = open_model(model, checkpoints, device)
    config = checkpoint.model.config
    context = config.n_positions if context is None else context
    stride = max(1, min(context, config.n_positions) // 2) if stride is None else stride
    resolve_protocol(config, context, stride)
    options = BenchmarkOptions(
        context=context, stride=stride, batch_size=batch_size, limit=limit, detokenize=detokenize
    )
    notes = console()
    files = {name: find_data(name, data) for name in names}  # the hub shows its own progress

    tables: list[ResultTable] = []
    record: dict[str, Any] = {"model": str(checkpoint.directory), "tokenizer": checkpoint.tokenizer.name}
    if sources:
        labels, parts = _evaluate_texts(checkpoint, sources, reading, options, by_position, notes)
        text_record = render.text_record(labels, parts)
        if names:
            record["text"] = text_record
        else:
            record = {**text_record, **record}
        tables += render.text_tables(labels, parts, checkpoint.tokenizer.name, limit)
    if names:
        record |= {"parameters": config.n_parameters, "benchmarks": []}
        for name in names:
            with progress_bar(notes, name) as report:
                result = run_benchmark(
                    name,
                    checkpoint.model,
                    checkpoint.tokenizer,
                    replace(options, progress=report),
                    data=files[name],
                )
            record["benchmarks"].append(render.benchmark_record(result, config.n_parameters))
            tables.append(render.benchmark_table(result, config.n_parameters))

    if as_json:
        write(json.dumps(record))
    elif markdown:
        write("\n\n".join(table.markdown() for table in tables))
    else:
        out = console(stderr=False)
        for number, table in enumerate(tables):
            if number:
                out.print()
            out.print(table.rich(out.width))


def _refuse_if(is_wrong: bool, message: str) -> None:
    """Raises: ConfigError for an option that would have no effect, or cannot be combined with another."""
    if is_wrong:
        raise ConfigError(message)


def _check_source(source: str, benchmarks: list[str]) -> None:
    """Raises: DataError for a name that is neither a file nor a benchmark, with a suggestion for a mistyped one."""
    if source == "-" or Path(source).exists() or glob.has_magic(source):
        return
    known = f"a benchmark ({', '.join(benchmarks)})"
    close = difflib.get_close_matches(source.lower(), benchmarks, n=1)
    if close:
        raise DataError(f"{source!r} is neither a file nor {known}; did you mean {close[0]!r}?")
    if not Path(source).suffix and "/" not in source:
        raise DataError(f"{source!r} is neither a file nor {known}")


def _evaluate_texts(
    checkpoint: "Checkpoint",
    sources: list[str],
    reading: ReadingConfig,
    options: "BenchmarkOptions",
    by_position: bool,
    notes: "Console",
) -> "tuple[list[str], Breakdown]":
    """The name of each document, and the evaluation of all of them."""
    from minigpt.cli.render.console import progress_bar
    from minigpt.data.corpus import Corpus
    from minigpt.data.sources import scan
    from minigpt.evaluation.breakdown import break_down
    from minigpt.evaluation.documents import document_labels, document_stream

    found = scan(sources, text_key=reading.text_key, encoding_errors=reading.encoding_errors)
    for name in found.skipped:
        note(f"skipped {name}: not a text file")
    tokenizer = checkpoint.tokenizer
    with progress_bar(notes, "tokenizing", in_bytes=True) as report:
        corpus = Corpus.build(found, tokenizer, validation_fraction=0, progress=report)
    with progress_bar(notes, "evaluating") as report:
        parts = break_down(
            checkpoint.model,
            document_stream(corpus, options.limit),
            end_of_text=tokenizer.end_of_text,
            token_lengths=tokenizer.token_lengths,
            context=options.context,
            stride=options.stride,
            batch_size=options.batch_size,
            by_position=by_position,
            progress=report,
        )
    return document_labels(found)[: options.limit], parts
