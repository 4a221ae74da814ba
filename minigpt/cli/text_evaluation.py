"""Evaluates texts, and the held-out part of a training text, for `minigpt evaluate`."""

from typing import TYPE_CHECKING, Any

from minigpt.cli.models import out_of_memory_as
from minigpt.cli.prompts import listed
from minigpt.cli.render.evaluation import TextResult, recorded_text
from minigpt.cli.render.terminal import note
from minigpt.config import ReadingConfig
from minigpt.errors import ConfigError, GenerationError
from minigpt.units import count

if TYPE_CHECKING:
    import numpy.typing as npt

    from minigpt.benchmarks.results import BenchmarkOptions
    from minigpt.evaluation.breakdown import Breakdown
    from minigpt.storage.checkpoint import Checkpoint

OUT_OF_MEMORY = "out of memory during evaluation; give a smaller --batch-size, or --device cpu"


def training_context(checkpoint: "Checkpoint") -> int | None:
    """The context length that the model was trained and evaluated with; None if it is not recorded."""
    training = checkpoint.record.training if checkpoint.record else None
    return training.context_length if training else None


def evaluate_texts(
    checkpoint: "Checkpoint",
    sources: list[str],
    reading: ReadingConfig,
    options: "BenchmarkOptions",
    by_position: bool,
    loss_on: str,
) -> TextResult:
    """Evaluates the documents of these texts together."""
    import numpy as np

    from minigpt.cli.render.console import console, progress_bar
    from minigpt.data.corpus import Corpus
    from minigpt.data.sources import scan
    from minigpt.evaluation.documents import document_origins, document_stream
    from minigpt.evaluation.training_corpus import training_overlap

    found = scan(sources, text_key=reading.text_key, encoding=reading.encoding, encoding_errors=reading.encoding_errors)
    for each in found.notes:
        note(each)
    for name in found.skipped:
        note(f"skipped {name}: not a text file")
    for overlap in training_overlap(found, checkpoint):
        note(f"note: {overlap}")
    with progress_bar(console(), "tokenizing", in_bytes=True) as report:
        tokenizer = checkpoint.tokenizer.with_names() if reading.special_tokens else checkpoint.tokenizer
        corpus = Corpus.build(found, tokenizer, validation_fraction=0, progress=report)
    corpus.check_loss_on(loss_on)
    stream, scored = document_stream(corpus, options.limit), corpus.scored(loss_on, "train")
    if scored is not None:
        scored = np.insert(scored[: len(stream) - 1], 0, False)
    labels = [origin.label for origin in document_origins(found, 0)[: options.limit]]
    title = "all texts" if options.limit is None else f"the first {count(len(labels), 'document')}"
    return TextResult(title, labels, _break_down(checkpoint, stream, scored, options, by_position), loss_on)


def evaluate_held_out(
    checkpoint: "Checkpoint",
    sources: list[str],
    reading: dict[str, Any],
    options: "BenchmarkOptions",
    by_position: bool,
    loss_on: str | None,
) -> TextResult:
    """Evaluates the held-out part of a model's training text, by default on the turns that the run measured.

    `sources` are the training text if it was given again, read with the recorded settings but those in `reading`.
    """
    from minigpt.cli.render.console import console, progress_bar
    from minigpt.evaluation.training_corpus import find_training_corpus, given_training_corpus, held_out_overlap

    if sources:
        with progress_bar(console(), "tokenizing", in_bytes=True) as report:
            corpus = given_training_corpus(checkpoint, sources, report, reading)
    else:
        again = f"give that text: minigpt evaluate {checkpoint.directory.name} TEXT --held-out"
        corpus, _ = find_training_corpus(checkpoint, fix=again)
    if len(corpus.validation) < 2:
        raise ConfigError(
            f"{checkpoint.directory} was trained with nothing held out, so there is nothing to evaluate; give another "
            "text"
        )
    record = checkpoint.record
    trained_on = record.training.scored_role if record and record.training else "all"
    loss_on = loss_on or trained_on
    corpus.check_loss_on(loss_on)
    for overlap in held_out_overlap(checkpoint):
        note(f"note: {overlap}")
    parts = _break_down(checkpoint, corpus.validation, corpus.scored(loss_on), options, by_position)
    labels = [f"held-out part #{number}" for number in range(1, len(parts.tokens) + 1)]
    context = training_context(checkpoint) or checkpoint.model.config.n_positions
    return TextResult(
        f"the part of the training text of {checkpoint.directory.name} that was held out",
        labels if len(labels) > 1 else ["held-out part"],
        parts,
        loss_on,
        "every token but the first scored once",
        [recorded_text(record.result if record else None, trained_on, context, parts.whole, loss_on)],
    )


def _break_down(
    checkpoint: "Checkpoint",
    stream: "npt.NDArray[Any]",
    scored: "npt.NDArray[Any] | None",
    options: "BenchmarkOptions",
    by_position: bool,
) -> "Breakdown":
    """Evaluates a stream of documents, (N,) token ids; only `scored` ones count, (N,) bool."""
    import numpy as np

    from minigpt.cli.render.console import console, progress_bar
    from minigpt.evaluation.breakdown import break_down
    from minigpt.generation.unread_characters import unread_tokens

    tokenizer = checkpoint.tokenizer
    if tokenizer.losses():
        unknown = tokenizer.special.get(tokenizer.unknown or "")
        n_unknown = 0 if unknown is None else int((stream == unknown).sum())
        note(
            f"note: the tokenizer ({tokenizer.name}) does not keep every character, so bits per byte are those of the"
            f" text that its tokens spell; {n_unknown:,} of {len(stream):,} tokens are unknown and spell nothing"
        )
    unread = unread_tokens(checkpoint.model, tokenizer)
    if tokenizer.end_of_text in unread:
        note("note: the model never predicts the end of a text, so these tokens are not scored")
        is_text = stream != tokenizer.end_of_text
        scored = is_text if scored is None else scored & is_text
    if lost := unread & {*np.unique(stream).tolist()} - {tokenizer.end_of_text}:
        raw = tokenizer.decode_bytes(id for id in stream.tolist() if id in lost)
        shown = listed([repr(char) for char in dict.fromkeys(raw.decode(errors="ignore"))])
        note(
            f"note: the model's vocabulary has no token for {shown}; it never predicts them, so they make up nearly all"
            " of the loss"
        )
    with progress_bar(console(), "evaluating") as report, out_of_memory_as(GenerationError(OUT_OF_MEMORY)):
        return break_down(
            checkpoint.model,
            stream,
            end_of_text=tokenizer.end_of_text,
            token_lengths=tokenizer.token_lengths,
            context=options.context,
            stride=options.stride,
            batch_size=options.batch_size,
            by_position=by_position,
            scored=scored,
            start_of_text=tokenizer.start_of_text,
            progress=report,
        )
