"""`minigpt evaluate`: how well a model predicts text files, and what it comes to on published benchmarks."""

import difflib
import glob
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minigpt.cli.models import open_model
from minigpt.cli.options import CheckpointsOption, DeviceOption, JsonOption, settings_options
from minigpt.config import ReadingConfig
from minigpt.errors import ConfigError, DataError

if TYPE_CHECKING:
    from rich.console import Console

    from minigpt.evaluation.benchmarks.results import Options, Result
    from minigpt.evaluation.breakdown import Breakdown
    from minigpt.storage.checkpoint import Checkpoint


@settings_options((ReadingConfig, ("text_key", "encoding_errors")))
def evaluate(
    given: dict[str, Any],
    model: Annotated[str, typer.Argument(help="a run's name or a model's folder")],
    texts: Annotated[
        list[str],
        typer.Argument(
            help="text files, folders or globs, or - for standard input; or benchmarks: lambada, hellaswag, wikitext2, "
            "wikitext103, ptb, cbt"
        ),
    ],
    stride: Annotated[
        int | None, typer.Option("--stride", help="tokens the window moves on by [half the context]", min=1)
    ] = None,
    context: Annotated[int | None, typer.Option("--context-length", help="tokens in the window [the model's]")] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", help="windows or examples read at once [about 8,000 tokens]", min=1)
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", help="only the first so many documents or examples", min=1)
    ] = None,
    by_position: Annotated[
        bool, typer.Option("--by-position", help="also the loss against the position in the window")
    ] = False,
    data: Annotated[
        Path | None, typer.Option("--data", help="a benchmark's file, or the folder it is in, instead of the hub")
    ] = None,
    detokenize: Annotated[
        bool, typer.Option("--detokenize", help="undo the tokenization that wikitext, ptb and cbt are published in")
    ] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="print Markdown tables instead of text")] = False,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
    checkpoints: CheckpointsOption = Path("checkpoints"),
) -> None:
    """Measure how well a model predicts texts: loss, perplexity and bits per byte; or run published benchmarks.

    The text is one stream of documents, an end-of-text behind each and one before the first. A window of the
    context's length moves over it; every token is scored once, with at least context - stride tokens before it (fewer
    at the start).
    Benchmarks come from the Hugging Face hub or from `--data`; beside each figure stands what was published of the
    GPT-2 nearest in size, and what about it differs.

    Examples:

    - `minigpt evaluate moby_dick other_book.txt`

    - `minigpt evaluate gpt2 test.txt --stride 1024 --json`

    - `minigpt evaluate gpt2 lambada hellaswag`

    - `minigpt evaluate moby_dick wikitext2 --data wiki.test.raw --detokenize`
    """
    reading = ReadingConfig(**given)

    from minigpt.cli import evaluation_view as view
    from minigpt.cli.render.console import console
    from minigpt.evaluation.benchmarks.results import Options
    from minigpt.evaluation.benchmarks.suite import BENCHMARKS, find_data, run_benchmark
    from minigpt.evaluation.perplexity import resolve_protocol

    names = [text for text in texts if text in BENCHMARKS and not Path(text).exists()]
    sources = [text for text in texts if text not in names]
    for source in sources:
        _check_source(source, list(BENCHMARKS))
    chosen = [BENCHMARKS[name] for name in names]
    _refuse_idle(data is not None and not names, "--data", "is where benchmarks find their files; name one")
    _refuse_idle(by_position and not sources, "--by-position", "is measured on texts; name one")
    _refuse_idle(
        stride is not None and not sources and not any(each.slides for each in chosen),
        "--stride",
        f"means nothing to {' and '.join(names)}: each example has a window of its own",
    )
    _refuse_idle(
        detokenize and not any(each.tokenized for each in chosen),
        "--detokenize",
        "is for wikitext2, wikitext103, ptb and cbt",
    )
    if as_json and markdown:
        raise ConfigError("--json and --markdown contradict one another; give one of them")

    checkpoint = open_model(model, checkpoints, device)
    directory = checkpoint.directory
    config = checkpoint.model.config
    context = config.n_positions if context is None else context
    stride = max(1, min(context, config.n_positions) // 2) if stride is None else stride
    resolve_protocol(config, context, stride)
    options = Options(context=context, stride=stride, batch_size=batch_size, limit=limit, detokenize=detokenize)
    notes = console()
    files = {name: find_data(name, data) for name in names}  # the hub draws its own progress

    sheets: list[view.Sheet] = []
    record: dict[str, Any] = {"model": str(directory), "tokenizer": checkpoint.tokenizer.name}
    if sources:
        labels, parts = _measure(checkpoint, sources, reading, options, by_position, notes)
        figures = view.text_record(labels, parts)
        if names:
            record["text"] = figures
        else:
            record = {**figures, **record}
        sheets += view.text_sheets(labels, parts, checkpoint.tokenizer.name, limit)
    if names:
        record["parameters"] = config.n_parameters
        results: list[Result] = []
        for name in names:
            with view.progress(notes, name) as report:
                results.append(
                    run_benchmark(
                        name,
                        checkpoint.model,
                        checkpoint.tokenizer,
                        replace(options, progress=report),
                        data=files[name],
                    )
                )
        record["benchmarks"] = [view.benchmark_record(result, config.n_parameters) for result in results]
        sheets += [view.benchmark_sheet(result, config.n_parameters) for result in results]

    if as_json:
        print(json.dumps(record))
    elif markdown:
        print("\n\n".join(sheet.markdown() for sheet in sheets))
    else:
        out = console(stderr=False)
        for number, sheet in enumerate(sheets):
            if number:
                out.print()
            out.print(sheet.rich(out.width))


def _refuse_idle(idle: bool, option: str, sentence: str) -> None:
    """An option that would change nothing is refused rather than passed over."""
    if idle:
        raise ConfigError(f"{option} {sentence}")


def _check_source(source: str, benchmarks: list[str]) -> None:
    """Tells a benchmark that is written wrongly from a file that is not there, which reading will say."""
    if source == "-" or Path(source).exists() or glob.has_magic(source):
        return
    known = f"a benchmark ({', '.join(benchmarks)})"
    close = difflib.get_close_matches(source.lower(), benchmarks, n=1)
    if close:
        raise DataError(f"{source!r} is neither a file nor {known}; did you mean {close[0]!r}?")
    if not Path(source).suffix and "/" not in source:
        raise DataError(f"{source!r} does not exist, and is no benchmark; give a text file, or {known}")


def _measure(
    checkpoint: "Checkpoint",
    sources: list[str],
    reading: ReadingConfig,
    options: "Options",
    by_position: bool,
    notes: "Console",
) -> "tuple[list[str], Breakdown]":
    """What to call each document, and the evaluation of them all."""
    import numpy as np

    from minigpt.cli import evaluation_view as view
    from minigpt.cli.render.console import byte_progress
    from minigpt.data.corpus import Corpus
    from minigpt.data.sources import scan
    from minigpt.evaluation.breakdown import break_down
    from minigpt.tokenizer.display import visible

    found = scan(sources, text_key=reading.text_key, encoding_errors=reading.encoding_errors)
    for name in found.skipped:
        notes.print(f"passed over {visible(name)}: not a text", markup=False)
    tokenizer = checkpoint.tokenizer
    with byte_progress(notes, "tokenizing") as report:
        corpus = Corpus.build(found, tokenizer, validation_fraction=0, progress=report)
    labels = view.document_labels(found)[: options.limit]
    stream = corpus.train
    if len(labels) < found.n_documents:
        stream = view.first_documents(stream, tokenizer.end_of_text, len(labels))
    stream = np.insert(stream, 0, tokenizer.end_of_text)  # so that the first token too is predicted from something
    with view.progress(notes, "measuring") as report:
        parts = break_down(
            checkpoint.model,
            stream,
            end_of_text=tokenizer.end_of_text,
            token_lengths=tokenizer.token_lengths,
            context=options.context,
            stride=options.stride,
            batch_size=options.batch_size,
            by_position=by_position,
            progress=report,
        )
    return labels, parts
