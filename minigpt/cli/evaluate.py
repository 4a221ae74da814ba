"""`minigpt evaluate`: how well a model predicts text files."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from minigpt.cli.options import CheckpointsOption, DeviceOption, JsonOption, settings_options
from minigpt.config import ReadingConfig


@settings_options((ReadingConfig, ("text_key", "encoding_errors")))
def evaluate(
    given: dict[str, Any],
    model: Annotated[str, typer.Argument(help="a run's name or a model's folder")],
    texts: Annotated[list[str], typer.Argument(help="text files, folders or globs, or - for standard input")],
    stride: Annotated[
        int | None, typer.Option("--stride", help="tokens the window moves on by [half the context]", min=1)
    ] = None,
    context: Annotated[int | None, typer.Option("--context-length", help="tokens in the window [the model's]")] = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
    checkpoints: CheckpointsOption = Path("checkpoints"),
) -> None:
    """Measure how well a model predicts texts: loss, perplexity and bits per byte.

    The text is one stream of documents, an end-of-text behind each. A window of the context's length moves over it;
    every token but the first is scored once, with at least context - stride tokens before it (fewer at the start).

    Examples:

    - `minigpt evaluate moby_dick other_book.txt`

    - `minigpt evaluate gpt2 test.txt --stride 1024 --json`
    """
    reading = ReadingConfig(**given)

    from minigpt.analysis.evaluation import evaluate as measure
    from minigpt.cli.render import console
    from minigpt.storage.checkpoint import find_checkpoint, load_checkpoint
    from minigpt.text.corpus import Corpus

    directory = find_checkpoint(model, checkpoints)
    checkpoint = load_checkpoint(directory, device)
    context = checkpoint.model.config.n_positions if context is None else context
    stride = max(1, context // 2) if stride is None else stride
    corpus = Corpus.build(
        texts,
        checkpoint.tokenizer,
        text_key=reading.text_key,
        encoding_errors=reading.encoding_errors,
        validation_fraction=0,
    )
    with console().status("measuring …"):
        measured = measure(
            checkpoint.model,
            corpus.train,
            token_lengths=checkpoint.tokenizer.token_lengths,
            context=context,
            stride=stride,
        )
    figures = {
        "loss": measured.loss,
        "perplexity": measured.perplexity,
        "bits_per_byte": measured.bits_per_byte,
        "tokens": measured.tokens,
        "bytes": measured.bytes,
        "context": measured.context,
        "stride": measured.stride,
        "model": str(directory),
        "tokenizer": checkpoint.tokenizer.name,
    }
    if as_json:
        print(json.dumps(figures))
        return
    out = console(stderr=False)
    out.print(f"loss           {measured.loss:.4f} nats per token")
    out.print(f"perplexity     {measured.perplexity:.2f} per token ({checkpoint.tokenizer.name})")
    out.print(f"bits per byte  {measured.bits_per_byte:.4f}")
    out.print(
        f"protocol       {measured.tokens:,} tokens, {measured.bytes:,} bytes; context {context}, stride {stride}; "
        "every token but the first scored once"
    )
