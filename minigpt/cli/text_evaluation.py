"""Evaluates tokens for `minigpt evaluate`."""

from typing import TYPE_CHECKING, Any

from minigpt.cli.models import out_of_memory_as
from minigpt.cli.prompts import listed
from minigpt.cli.render.terminal import note
from minigpt.errors import GenerationError

if TYPE_CHECKING:
    import numpy.typing as npt

    from minigpt.evaluation.breakdown import Breakdown
    from minigpt.evaluation.perplexity import Windows
    from minigpt.storage.checkpoint import Checkpoint

OUT_OF_MEMORY = "out of memory during evaluation; give a smaller --batch-size, or --device cpu"


def break_down_stream(
    checkpoint: "Checkpoint",
    stream: "npt.NDArray[Any]",
    scored: "npt.NDArray[Any] | None",
    windows: "Windows",
    by_position: bool,
) -> "Breakdown":
    """Evaluates a stream of documents, (N,) token ids; only `scored` ones count, (N,) bool."""
    import numpy as np

    from minigpt.cli.render.console import console, progress_bar
    from minigpt.evaluation.breakdown import break_down
    from minigpt.pretrained.unread_characters import unread_tokens

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
            context=windows.context,
            stride=windows.stride,
            batch_size=windows.batch_size,
            by_position=by_position,
            scored=scored,
            start_of_text=tokenizer.start_of_text,
            progress=report,
        )
