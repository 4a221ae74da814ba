"""`minigpt inspect`: how a model predicts each token of a text, in the terminal, as a page, as a picture."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minigpt.cli.models import open_model, out_of_memory_as
from minigpt.cli.options import CheckpointsOption, DeviceOption, JsonOption, ModelArgument, settings_options
from minigpt.cli.prompts import READING, note_unread_text, read_prompts, refuse_reading
from minigpt.cli.render.terminal import note, write
from minigpt.config import ReadingConfig, SamplingConfig
from minigpt.errors import ConfigError, DataError, GenerationError
from minigpt.pages.output_file import check_output
from minigpt.units import size

if TYPE_CHECKING:
    from minigpt.inspection.activations import Inspection, Predictions
    from minigpt.inspection.token_table import TokenRow
    from minigpt.storage.checkpoint import Checkpoint
    from minigpt.tokenizer.tokenizer import Tokenizer

_N_LEAST_LIKELY = 5


@settings_options((SamplingConfig, ("special_tokens",)), (ReadingConfig, READING))
def inspect(
    given: dict[str, Any],
    model: ModelArgument,
    prompt: Annotated[str | None, typer.Argument(help="the text to inspect", metavar="TEXT")] = None,
    file: Annotated[Path | None, typer.Option(help="read the text from this file, or - for standard input")] = None,
    top: Annotated[int, typer.Option(help="how many of the most likely tokens to show at each position", min=1)] = 5,
    table: Annotated[
        bool, typer.Option("--table", help="print a row for each token: probability, surprisal, most likely tokens")
    ] = False,
    page: Annotated[
        Path | None, typer.Option("--html", help="write an HTML page: attention maps, logit lens, probabilities, norms")
    ] = None,
    png: Annotated[Path | None, typer.Option(help="draw the attention map of --layer and --head")] = None,
    layer: Annotated[int | None, typer.Option(help="the layer that --png draws and --html opens with, from 0")] = None,
    head: Annotated[int | None, typer.Option(help="the head that --png draws and --html opens with, from 0")] = None,
    force: Annotated[
        bool, typer.Option("--force", help="replace existing files that --html or --png did not write")
    ] = False,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
    checkpoints: CheckpointsOption = Path("checkpoints"),
) -> None:
    """Show how a model predicts a text: each token's probability, the most likely tokens, what its heads attend to.

    Examples:

    - `minigpt inspect moby_dick "Call me Ishmael."`
    - `minigpt inspect moby_dick --file chapter.txt --table --top 3`
    - `minigpt inspect gpt2 "The cat sat on the mat" --html cat.html`
    """
    files = _Files(page, png, layer, head)
    files.check()
    if as_json and table:
        raise ConfigError("--json cannot be combined with --table; give one of the two")
    read_with = {name: given.pop(name) for name in READING if name in given}
    if file is None:
        refuse_reading(read_with, "the text of --file")
    text = _text(prompt, file, ReadingConfig(**read_with))

    import torch

    from minigpt.generation.healing import encode_prompt
    from minigpt.inspection.activations import inspect as inspect_all
    from minigpt.inspection.activations import predict
    from minigpt.inspection.attention_map import check_layer_and_head
    from minigpt.inspection.json_form import most_tokens
    from minigpt.inspection.page import MOST_WEIGHTS
    from minigpt.model.nonfinite import check_finite

    targets = files.targets(force=force)
    checkpoint = open_model(model, checkpoints, device)
    tokenizer, shape = checkpoint.tokenizer, checkpoint.model.config
    check_layer_and_head(shape.n_layer, shape.n_head, layer or 0, head or 0)
    if not tokenizer.encode(text):
        raise DataError("the text has no token of this tokenizer; give another text")
    special_tokens = given.get("special_tokens", False)
    note_unread_text(checkpoint.model, tokenizer, [text], special_tokens)
    whole = encode_prompt(tokenizer, text, token_healing=False, special_tokens=special_tokens).ids
    limit = shape.n_positions if page is None else most_tokens(shape, MOST_WEIGHTS)
    ids = whole[-limit:]
    if len(ids) < len(whole):
        what = "the context length" if limit == shape.n_positions else "a page of all attention maps has room for"
        note(f"the text has {len(whole):,} tokens, more than {what} ({limit:,}); only its last {limit:,} are inspected")
    with out_of_memory_as(GenerationError("out of memory during inspection; give a shorter text, or --device cpu")):
        found = None if page is None and png is None else inspect_all(checkpoint.model, ids, top=top)
        predictions = predict(checkpoint.model, ids, top=top) if found is None else found.predictions
    computed = torch.cat([predictions.logprobs[:-1], predictions.top_logprobs.flatten()])
    check_finite(computed, checkpoint.model, torch.tensor([ids]))
    if found is not None:
        files.write(found, checkpoint, ids, targets)
    if as_json:
        write(json.dumps(_record(checkpoint, len(whole), ids, predictions)))
    else:
        _print(tokenizer, ids, predictions, table=table)
    for path in filter(None, (page, png)):
        note(f"written: {path} ({size(path.stat().st_size)})")


@dataclass(frozen=True)
class _Files:
    """The page and the picture to write, and the attention map that they show."""

    page: Path | None
    png: Path | None
    layer: int | None
    head: int | None

    def check(self) -> None:
        """Raises ConfigError if one is missing without which another has no effect."""
        if self.png is not None and (self.layer is None or self.head is None):
            raise ConfigError("--png draws one attention map: give its --layer and --head, both counted from 0")
        if self.png is None and self.page is None and not (self.layer is None and self.head is None):
            raise ConfigError("--layer and --head choose an attention map: give --png FILE or --html FILE too")

    def targets(self, *, force: bool) -> dict[Path, Path]:
        """The files to write, by the paths given; see `check_output`."""
        from minigpt.inspection.attention_map import MARK
        from minigpt.inspection.page import INSPECTION
        from minigpt.pages.document import mark_of

        marks = ((self.page, mark_of(INSPECTION)), (self.png, MARK))
        return {path: check_output(path, mark, force=force) for path, mark in marks if path is not None}

    def write(self, found: "Inspection", checkpoint: "Checkpoint", ids: list[int], targets: dict[Path, Path]) -> None:
        from minigpt.inspection.attention_map import draw_map
        from minigpt.inspection.page import inspection_page
        from minigpt.storage.folder import replace_file
        from minigpt.tokenizer.display import token_label

        tokenizer, layer, head = checkpoint.tokenizer, self.layer or 0, self.head or 0
        if self.page is not None:
            written = inspection_page(found, tokenizer, checkpoint.directory.name, layer=layer, head=head)
            replace_file(targets[self.page], written.encode())
        if self.png is not None:
            labels = [token_label(tokenizer, id) for id in ids]
            draw_map(found, labels, targets[self.png], layer=layer, head=head)


def _text(prompt: str | None, file: Path | None, reading: ReadingConfig) -> str:
    if prompt is not None and file is not None:
        raise ConfigError("a text cannot be combined with --file; give one of the two")
    (text,) = read_prompts(prompt, file, "auto" if file is None else "whole", reading, option="--file")
    assert isinstance(text, str)  # ids are in a .jsonl only
    if not text:
        raise DataError("the text is empty: give one after the model's name, or with --file (- for standard input)")
    return text


def _rows(tokenizer: "Tokenizer", ids: list[int], predictions: "Predictions") -> "list[TokenRow]":
    """A row for every token, with the most likely tokens in its place, and one for the next token."""
    from minigpt.inspection.token_table import TokenRow
    from minigpt.tokenizer.display import token_label

    entropies, ranks = predictions.entropy.tolist(), predictions.ranks.tolist()
    top = zip(predictions.top_ids.tolist(), predictions.top_logprobs.tolist(), strict=True)
    most_likely = [[(token_label(tokenizer, id), logprob) for id, logprob in zip(*each, strict=True)] for each in top]
    rows = [TokenRow(0, token_label(tokenizer, ids[0]), None)]
    for at, logprob in enumerate(predictions.logprobs[:-1].tolist()):
        label = token_label(tokenizer, ids[at + 1])
        rows.append(TokenRow(at + 1, label, logprob, most_likely[at], entropies[at], ranks[at]))
    return [*rows, TokenRow(len(ids), "(next)", None, most_likely[-1], entropies[-1])]


def _record(checkpoint: "Checkpoint", n_given: int, ids: list[int], predictions: "Predictions") -> dict[str, Any]:
    """The record for --json: arrays with an entry per token, null for the first, which was not predicted."""
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


def _print(tokenizer: "Tokenizer", ids: list[int], predictions: "Predictions", *, table: bool) -> None:
    from minigpt.cli.render.console import console
    from minigpt.inspection.activations import mean_bits
    from minigpt.inspection.token_colors import TokenPainter, paint_tokens
    from minigpt.inspection.token_table import print_table

    out = console(stderr=False)
    *rows, following = _rows(tokenizer, ids, predictions)
    if table:
        print_table(out, [*rows, following])
    else:
        painter = TokenPainter(out)
        paint_tokens(painter, tokenizer, ids, [row.logprob for row in rows])
        painter.legend()
    per_token, per_byte = mean_bits(predictions, ids, tokenizer.token_lengths)
    out.print()
    if per_token is None:
        out.print("the text is a single token: nothing comes before it, so it has no probability", soft_wrap=True)
    else:
        entropy = float(predictions.entropy[:-1].mean()) / math.log(2)
        bytewise = "" if per_byte is None else f", {per_byte:.2f} bits per byte"
        out.print(
            f"mean surprisal {per_token:.2f} bits per token{bytewise}; mean entropy {entropy:.2f} bits", soft_wrap=True
        )
    if not table:
        least_likely = sorted(rows[1:], key=lambda row: row.logprob or 0.0)[:_N_LEAST_LIKELY]
        title = "the least likely tokens, and the next one" if least_likely else "the next token"
        out.print(f"\n{title}; surprisal and entropy in bits", soft_wrap=True)
        print_table(out, [*least_likely, following])
