"""`minigpt evaluate`: measures a model on text files, and on what edges add."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minigpt.cli.evaluate_settings import EvaluateSettings
from minigpt.cli.models import open_model
from minigpt.cli.options import CheckpointsOption, DeviceOption, JsonOption, ModelArgument, settings_options
from minigpt.cli.render.terminal import write
from minigpt.config import ReadingConfig
from minigpt.edges import provided
from minigpt.errors import ConfigError
from minigpt.settings import combined

if TYPE_CHECKING:
    from minigpt.cli.render.result_table import ResultTable
    from minigpt.evaluation.perplexity import Windows
    from minigpt.storage.checkpoint import Checkpoint

_SETTINGS: type[EvaluateSettings] = combined(
    "AllEvaluateSettings",
    "The settings of `evaluate` and of the installed edges.",
    (EvaluateSettings, *provided("evaluate_settings")),
)


@settings_options((ReadingConfig, ("text_key", "encoding", "encoding_errors", "special_tokens")), options=_SETTINGS)
def evaluate(
    given: dict[str, Any],
    model: ModelArgument = None,
    texts: Annotated[list[str] | None, typer.Argument(help=_SETTINGS.texts_help, metavar="TEXT")] = None,
    *,
    options: dict[str, Any],
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
    settings = _SETTINGS(**options)
    ReadingConfig(**given)  # checks them
    names = settings.names_in(texts or [])
    sources = [text for text in texts or [] if text not in names]
    _check_together(settings, names, sources, given, as_json=as_json)

    checkpoint = open_model(model, checkpoints, device)
    windows = _windows(settings, checkpoint)
    measurements = settings.prepare(names)
    record: dict[str, Any] = {"model": str(checkpoint.directory), "tokenizer": checkpoint.tokenizer.name}
    show: Callable[..., None] = (lambda *_: None) if as_json else _table_printer(markdown=settings.markdown)
    has_result = bool(sources or settings.held_out)
    if has_result:
        text = settings.evaluate_texts(checkpoint, sources, given, windows)
        if measurements:
            record["text"] = text.record()
        else:
            record = {**text.record(), **record} | ({"held_out": True} if settings.held_out else {})
        if text.loss_on != "all":
            record["loss_on"] = text.loss_on
        show(*text.tables(checkpoint.tokenizer.name))
    try:
        for measure in measurements:
            for table in measure(checkpoint, windows, record):
                has_result = True
                show(table)
    finally:  # the results before an error or Ctrl-C took minutes: they are printed too
        if as_json and has_result:
            write(json.dumps(record))


def _check_together(
    settings: EvaluateSettings, names: Sequence[str], sources: Sequence[str], given: dict[str, Any], *, as_json: bool
) -> None:
    """Raises ConfigError for settings that do not go together; `given` are those of reading a text."""
    has_text = bool(sources or settings.held_out)
    kinds = " or ".join(filter(None, (", ".join(settings.kinds[:-1]), settings.kinds[-1])))
    unread = " and ".join(f"--{name}".replace("_", "-") for name in given)
    for is_wrong, message in (
        (not has_text and not names, f"there is no text to evaluate; give {kinds}"),
        (settings.by_position and not has_text, "--by-position is only for texts; name one"),
        (given and not sources, f"{unread} can only be given with a text; name one"),
        (as_json and settings.markdown, "--json and --markdown exclude each other; pass one of them"),
    ):
        if is_wrong:
            raise ConfigError(message)
    settings.check_together(names, has_text=has_text)


def _windows(settings: EvaluateSettings, checkpoint: "Checkpoint") -> "Windows":
    """The windows of the evaluation.

    Raises: ConfigError if they do not fit the model.
    """
    from minigpt.evaluation.perplexity import Windows, resolve_protocol

    context, stride = settings.default_windows(checkpoint)
    if (given := settings.context_length) is not None:
        context, longest = given, checkpoint.model.config.n_positions
        if not 1 <= given <= longest:
            raise ConfigError(f"context_length ({given}) must be from 1 to the model's context length ({longest})")
    stride = stride if settings.stride is None else settings.stride
    resolve_protocol(checkpoint.model.config, context, stride)
    return Windows(context=context, stride=stride, batch_size=settings.batch_size, limit=settings.limit)


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
