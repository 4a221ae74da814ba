"""The plan of a training run as a table."""

import time
from typing import TYPE_CHECKING

from rich.table import Table

from minigpt.cli.render.units import count, size

if TYPE_CHECKING:
    from minigpt.data.corpus import Corpus
    from minigpt.planning.plan import Plan

_CENTURY = 100 * 365.25 * 24 * 3600  # seconds; many systems cannot represent a later time


def plan_table(made: "Plan", corpus: "Corpus", title: str, device: str) -> Table:
    """The settings of a run, each with the options that change it."""
    from minigpt.planning.plan import FINE_TUNED

    model, training = made.model, made.training
    length = (
        f"{training.minutes:g} minutes"
        if training.minutes
        else f"{training.epochs:g} epochs"
        if training.epochs
        else f"{training.steps:,} steps"
    )
    held_out = "nothing held out, so it cannot stop early"
    if len(corpus.validation) > 1:
        held_out = f"{size(corpus.validation_bytes)} held out for validation ({corpus.held_out})"
    per_token = corpus.train_bytes / len(corpus.train)
    steps = made.steps(len(corpus.train))
    seconds = 60 * training.minutes if training.minutes else steps * made.seconds_per_step
    epochs = steps * made.tokens_per_step / len(corpus.train)
    dtype = f"{training.dtype}: {made.why_dtype}" if made.why_dtype else training.dtype
    fine_tuned = made.preset == FINE_TUNED  # the model brings its shape and its tokenizer
    tokenizer_flag, preset_flag, shape_flags = (
        ("", "--from", "") if fine_tuned else ("--tokenizer", "--preset", "--n-layer --n-head --n-embd")
    )
    rows = [
        ("text", f"{size(corpus.train_bytes)}, {held_out}", "--validation-fraction"),
        ("tokenizer", f"{corpus.tokenizer.name}, {corpus.tokenizer.vocab_size:,} tokens", tokenizer_flag),
        ("tokens", f"{len(corpus.train):,}, {per_token:.2f} bytes of text each", ""),
        ("model", f"{made.preset}, {model.n_parameters:,} parameters", preset_flag),
        ("", f"{model.n_layer} layers, {model.n_head} heads, width {model.n_embd}", shape_flags),
        ("context", f"{training.context_length} tokens", "--context-length"),
        ("dropout", f"{model.dropout:g}, token noise {training.token_noise:g}", "--dropout --token-noise"),
        ("", f"BPE-dropout {training.bpe_dropout:g}", "--bpe-dropout"),
        (
            "batch",
            f"{count(training.sequences_per_step, 'sequence')}, {made.tokens_per_step:,} tokens per step",
            "--batch-tokens" if training.batch_tokens else "--batch-size",
        ),
        ("optimizer", f"{training.optimizer}, learning rate {training.learning_rate:g}", "--optimizer --learning-rate"),
        ("schedule", training.schedule, "--schedule --cooldown"),
        ("length", f"{length}, {_end_time(seconds)}", "--minutes --steps --epochs"),
        ("", f"about {steps:,.0f} steps, {epochs:.1f} epochs", ""),
        ("speed", f"{made.tokens_per_step / made.seconds_per_step:,.0f} tokens/s, measured on this machine", ""),
        (
            "memory",
            f"about {size(made.memory)}, PyTorch itself not counted",
            "--micro-batch-size --checkpoint-activations",
        ),
        (
            "early stop",
            f"after {training.patience} evaluations without improvement" if training.patience else "never",
            "--patience",
        ),
        ("device", f"{device}, {dtype}", "--device --dtype"),
        ("seed", str(training.seed), "--seed"),
    ]
    if made.expected is not None:
        rows.append(
            ("expected", f"about {made.expected:.2f} bits per byte at the end, estimated from runs on other texts", "")
        )
    table = Table(title=title, title_justify="left", title_style="bold", box=None, header_style="dim")
    table.add_column(style="dim")
    table.add_column()
    table.add_column("change it with", style="cyan")
    for row in rows:
        table.add_row(*row)
    return table


def _end_time(seconds: float) -> str:
    """When a run of this many seconds will be done, with the date where that may be another day."""
    if seconds > _CENTURY:
        return "more than a hundred years"
    pattern = "%H:%M:%S" if seconds < 20 * 3600 else "%Y-%m-%d %H:%M"
    return time.strftime(f"done at {pattern}", time.localtime(time.time() + seconds))
