"""The plan of a training run as a table."""

import time
from typing import TYPE_CHECKING

from rich.table import Table

from minigpt.cli.render.units import count, size

if TYPE_CHECKING:
    from minigpt.data.corpus import Corpus
    from minigpt.planning.plan import Plan

_CENTURY = 100 * 365.25 * 24 * 3600  # seconds; many systems know no later time


def plan_table(made: "Plan", corpus: "Corpus", title: str, device: str) -> Table:
    """What was chosen for a run, and the flag that changes each."""
    from minigpt.planning.plan import FINE_TUNED

    model, training = made.model, made.training
    length = (
        f"{training.minutes:g} minutes"
        if training.minutes
        else f"{training.epochs:g} epochs"
        if training.epochs
        else f"{training.steps:,} steps"
    )
    held_out = "nothing held out: nothing will tell when to stop"
    if len(corpus.validation) > 1:
        held_out = f"{size(corpus.validation_bytes)} held out ({corpus.held_out})"
    per_token = corpus.train_bytes / len(corpus.train)
    steps = made.steps(len(corpus.train))
    seconds = 60 * training.minutes if training.minutes else steps * made.seconds_per_step
    epochs = steps * made.tokens_per_step / len(corpus.train)
    arithmetic = f"{training.dtype}: {made.why_dtype}" if made.why_dtype else training.dtype
    fixed = made.preset == FINE_TUNED  # it brings its tokenizer too
    tokenizer_flag, preset_flag, shape_flags = (
        ("", "--from", "") if fixed else ("--tokenizer", "--preset", "--n-layer --n-head --n-embd")
    )
    rows = [
        ("text", f"{size(corpus.train_bytes)}, {held_out}", "--validation-fraction"),
        ("tokenizer", f"{corpus.tokenizer.name}, {corpus.tokenizer.vocab_size:,} words", tokenizer_flag),
        ("tokens", f"{len(corpus.train):,} of {per_token:.2f} bytes", ""),
        ("model", f"{made.preset}, {model.n_parameters:,} parameters", preset_flag),
        ("", f"{model.n_layer} layers, {model.n_head} heads, {model.n_embd} wide", shape_flags),
        ("context", f"{training.context_length} tokens", "--context-length"),
        ("dropout", f"{model.dropout:g}, token noise {training.token_noise:g}", "--dropout --token-noise"),
        ("", f"BPE-dropout {training.bpe_dropout:g}", "--bpe-dropout"),
        (
            "batch",
            f"{count(training.sequences_per_step, 'sequence')}, {made.tokens_per_step:,} tokens a step",
            "--batch-tokens" if training.batch_tokens else "--batch-size",
        ),
        ("optimizer", f"{training.optimizer}, rate {training.learning_rate:g}", "--optimizer --learning-rate"),
        ("schedule", training.schedule, "--schedule --cooldown"),
        ("length", f"{length}, {_done(seconds)}", "--minutes --steps --epochs"),
        ("", f"about {steps:,.0f} steps, {epochs:.1f} times the text", ""),
        ("speed", f"{made.tokens_per_step / made.seconds_per_step:,.0f} tokens/s, measured here", ""),
        ("memory", f"about {size(made.memory)} beside torch itself", "--micro-batch-size --checkpoint-activations"),
        ("early stop", f"after {training.patience} evaluations" if training.patience else "never", "--patience"),
        ("device", f"{device}, {arithmetic}", "--device --dtype"),
        ("seed", str(training.seed), "--seed"),
    ]
    if made.expected is not None:
        rows.append(("forecast", f"{made.expected:.2f} bits per byte in the end, by experiments on other texts", ""))
    table = Table(title=title, title_justify="left", title_style="bold", box=None, show_header=False)
    table.add_column(style="dim")
    table.add_column()
    table.add_column(style="cyan")
    for row in rows:
        table.add_row(*row)
    return table


def _done(seconds: float) -> str:
    """When so many seconds will be over; with the day, where that may be another one."""
    if seconds > _CENTURY:
        return "not done in a hundred years"
    pattern = "%H:%M:%S" if seconds < 20 * 3600 else "%Y-%m-%d %H:%M"
    return time.strftime(f"done at {pattern}", time.localtime(time.time() + seconds))
