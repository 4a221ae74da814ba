"""`minigpt inspect`: what a model makes of a text, in the terminal, as a page, as a picture."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minigpt.cli.models import open_model
from minigpt.cli.options import CheckpointsOption, DeviceOption, JsonOption
from minigpt.cli.prompts import read_prompts
from minigpt.errors import ConfigError, DataError

if TYPE_CHECKING:
    from minigpt.cli.render.token_colors import Row
    from minigpt.inspection.activations import Predictions
    from minigpt.storage.checkpoint import Checkpoint
    from minigpt.tokenizer.tokenizer import Tokenizer

_MOST_SURPRISING = 5


def inspect(
    model: Annotated[str, typer.Argument(help="a run's name or a model's folder")],
    prompt: Annotated[str | None, typer.Argument(help="the text to look at")] = None,
    file: Annotated[Path | None, typer.Option("--file", help="read the text from a file, or - for stdin")] = None,
    top: Annotated[int, typer.Option("--top", help="so many of the likeliest tokens at each place", min=1)] = 5,
    table: Annotated[
        bool, typer.Option("--table", help="a row for every token, with the likeliest in its place")
    ] = False,
    page: Annotated[
        Path | None, typer.Option("--html", help="write a page: attention, logit lens, probabilities, norms")
    ] = None,
    png: Annotated[Path | None, typer.Option("--png", help="draw one attention map, of --layer and --head")] = None,
    layer: Annotated[int | None, typer.Option("--layer", help="of --png, and where --html opens; from 0")] = None,
    head: Annotated[int | None, typer.Option("--head", help="of --png, and where --html opens; from 0")] = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
    checkpoints: CheckpointsOption = Path("checkpoints"),
) -> None:
    """See what a model makes of a text: how likely each token was to it, what it expected, where its heads look.

    Examples:

    - `minigpt inspect moby_dick "Call me Ishmael."`

    - `minigpt inspect moby_dick --file chapter.txt --table --top 3`

    - `minigpt inspect gpt2 "The cat sat on the mat" --html cat.html`
    """
    if png is not None and (layer is None or head is None):
        raise ConfigError("--png draws one map: give its --layer and --head, both counted from 0")
    if png is None and page is None and not (layer is None and head is None):
        raise ConfigError("--layer and --head choose a map to draw: give --png FILE or --html FILE too")
    if as_json and table:
        raise ConfigError("--json and --table contradict one another; give one of them")
    text = _text(prompt, file)

    from minigpt.cli.render.console import console
    from minigpt.inspection.activations import inspect as inspect_all
    from minigpt.inspection.activations import predict
    from minigpt.inspection.attention_map import check_place, draw_map
    from minigpt.reports.inspection_page import inspection_page, most_tokens
    from minigpt.tokenizer.display import token_label

    checkpoint = open_model(model, checkpoints, device)
    tokenizer, shape = checkpoint.tokenizer, checkpoint.model.config
    check_place(shape.n_layer, shape.n_head, layer or 0, head or 0)
    given = tokenizer.encode(text)
    room = shape.n_positions if page is None else most_tokens(shape)
    ids = given[-room:]
    notes = console()
    if len(ids) < len(given):
        why = "the context" if room == shape.n_positions else "a page of so many maps holds"
        notes.print(f"the text's {len(given)} tokens are more than {why} ({room}); its last {room} are inspected")
    if page is None and png is None:
        predictions = predict(checkpoint.model, ids, top=top)
    else:
        found = inspect_all(checkpoint.model, ids, top=top)
        predictions = found.predictions
        if page is not None:
            written = inspection_page(found, tokenizer, checkpoint.directory.name, layer=layer or 0, head=head or 0)
            _write(page, written)
        if png is not None and layer is not None and head is not None:
            draw_map(found, [token_label(tokenizer, id) for id in ids], png, layer=layer, head=head)
    if as_json:
        print(json.dumps(_record(checkpoint, len(given), ids, predictions)))
    else:
        _show(tokenizer, ids, predictions, table=table)
    for path in filter(None, (page, png)):
        notes.print(f"written: {path} ({path.stat().st_size / 1000:,.0f} kB)")


def _text(prompt: str | None, file: Path | None) -> str:
    """What is to be looked at.

    Raises: ConfigError for two texts; DataError for none.
    """
    if prompt is not None and file is not None:
        raise ConfigError("a text and --file contradict one another; give one of them")
    text = read_prompts(prompt, file, "auto" if file is None else "whole")[0]
    if not text:
        raise DataError("the text is empty: give one behind the model's name, or a --file (- for standard input)")
    return text


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({(error.strerror or str(error)).lower()})") from error


def _rows(tokenizer: "Tokenizer", ids: list[int], predictions: "Predictions") -> "list[Row]":
    """A row for every token, with what was predicted in its place, and one for the token that would come next."""
    from minigpt.cli.render.token_colors import Row
    from minigpt.tokenizer.display import token_label

    entropies, ranks = predictions.entropy.tolist(), predictions.ranks.tolist()
    told = zip(predictions.top_ids.tolist(), predictions.top_logprobs.tolist(), strict=True)
    likeliest = [[(token_label(tokenizer, id), logprob) for id, logprob in zip(*each, strict=True)] for each in told]
    rows = [Row(0, token_label(tokenizer, ids[0]), None)]
    for at, logprob in enumerate(predictions.logprobs[:-1].tolist()):
        label = token_label(tokenizer, ids[at + 1])
        rows.append(Row(at + 1, label, logprob, likeliest[at], entropies[at], ranks[at]))
    return [*rows, Row(len(ids), "(next)", None, likeliest[-1], entropies[-1])]


def _record(checkpoint: "Checkpoint", n_given: int, ids: list[int], predictions: "Predictions") -> dict[str, Any]:
    """The arrays, one entry per token; an entry is about the token's own place, so the first is null."""
    from minigpt.inspection.activations import mean_bits
    from minigpt.tokenizer.display import token_label

    tokenizer = checkpoint.tokenizer
    per_token, per_byte = mean_bits(predictions, ids, tokenizer.token_lengths)
    entropy, top_ids, top_logprobs = (
        part.tolist() for part in (predictions.entropy, predictions.top_ids, predictions.top_logprobs)
    )
    return {
        "model": str(checkpoint.directory),
        "tokenizer": tokenizer.name,
        "tokens_given": n_given,
        "bits_per_token": per_token,
        "bits_per_byte": per_byte,
        "ids": ids,
        "tokens": [token_label(tokenizer, id) for id in ids],
        "logprobs": [None, *predictions.logprobs[:-1].tolist()],
        "ranks": [None, *predictions.ranks[:-1].tolist()],
        "entropy": [None, *entropy[:-1]],
        "top_ids": [None, *top_ids[:-1]],
        "top_logprobs": [None, *top_logprobs[:-1]],
        "next": {"entropy": entropy[-1], "top_ids": top_ids[-1], "top_logprobs": top_logprobs[-1]},
    }


def _show(tokenizer: "Tokenizer", ids: list[int], predictions: "Predictions", *, table: bool) -> None:
    """Prints the text, coloured or as a table, and what it comes to."""
    from minigpt.cli.render.console import console
    from minigpt.cli.render.token_colors import Painter, paint, write_rows
    from minigpt.inspection.activations import mean_bits

    out = console(stderr=False)
    *rows, following = _rows(tokenizer, ids, predictions)
    if table:
        write_rows(out, [*rows, following])
    else:
        painter = Painter(out)
        paint(painter, tokenizer, ids, [row.logprob for row in rows])
        painter.legend()
    per_token, per_byte = mean_bits(predictions, ids, tokenizer.token_lengths)
    out.print()
    if per_token is None:
        out.print("one token alone: nothing came before it, so its probability is not known", soft_wrap=True)
    else:
        expected = float(predictions.entropy[:-1].mean()) / math.log(2)
        bytewise = "" if per_byte is None else f", {per_byte:.2f} per byte"
        out.print(
            f"surprise {per_token:.2f} bits per token{bytewise}; {expected:.2f} expected (mean entropy)", soft_wrap=True
        )
    if not table:
        surprising = sorted(rows[1:], key=lambda row: row.logprob or 0.0)[:_MOST_SURPRISING]
        out.print("\nmost surprising, and what comes next" if surprising else "\nwhat comes next", soft_wrap=True)
        write_rows(out, [*surprising, following])
