"""How things look in the terminal: consoles, small tables, units, a run's plan and what it came to."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from minigpt.data.corpus import Corpus
    from minigpt.planning.plan import Plan
    from minigpt.planning.throughput import Peak
    from minigpt.training.events import Finished


_CENTURY = 100 * 365.25 * 24 * 3600  # seconds; many systems know no later time


def console(*, stderr: bool = True) -> Console:
    """A console for one of the two streams; nothing in it is highlighted by guesswork."""
    return _Console(stderr=stderr, highlight=False, soft_wrap=False)


class _Console(Console):
    """A console that leaves it to `minigpt.cli.app` when its reader has gone; rich's would exit with code 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def facts(title: str, rows: Mapping[str, str]) -> RenderableType:
    """Names and values in two columns under a title."""
    table = Table(
        title=title, title_justify="left", title_style="bold", show_header=False, box=None, padding=(0, 2, 0, 0)
    )
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(name.replace("_", " "), Text(value))
    return table


def size(n_bytes: float) -> str:
    """A number of bytes in decimal units: 1.2 MB."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} {unit}" if unit == "bytes" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.1f} TB"


def count(number: int, what: str) -> str:
    """So many of something: 1 word, 1,200 words."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def duration(seconds: float) -> str:
    """A time span: 0:07, 12:40, 1:02:03."""
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@contextmanager
def byte_progress(out: Console, what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar over bytes that is told (done, total); it vanishes when done, and only a terminal has it."""
    if not out.is_terminal:
        yield lambda *_: None
        return
    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=out, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


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


def speed(tokens_per_second: float, flops_per_token: float, peak: "Peak") -> str:
    """How fast training went, as tokens and as a share of what the device's arithmetic could do."""
    flops = tokens_per_second * flops_per_token
    return f"{tokens_per_second:,.0f} tokens/s, {flops / peak.flops:.0%} of the arithmetic here ({peak.source})"


def summary(
    event: "Finished", n_scored: int, speed: str, directory: str, better: str | None, copied: str | None
) -> RenderableType:
    """What a run came to; `n_scored` are the tokens of its validation part that can be measured."""
    rows = {"steps": f"{event.step:,} in {duration(event.seconds)}", "speed": speed}
    if event.validation_loss is not None and event.bits_per_byte is not None:
        rows["best weights"] = f"step {event.best_step:,}"
        read = event.validation_tokens
        tokens = f"all {read:,} tokens" if read >= n_scored else f"{read:,} of {n_scored:,} tokens"
        rows["validation loss"] = f"{event.validation_loss:.4f} nats per token, {tokens}"
        rows["perplexity"] = f"{math.exp(min(700.0, event.validation_loss)):.2f} per token"
        rows["bits per byte"] = f"{event.bits_per_byte:.4f}"
    if better is not None:
        rows["better than"] = better
    if copied is not None:
        rows["copied"] = copied
    rows["saved in"] = directory
    return facts("stopped early: validation no longer improves" if event.reason == "early stop" else "done", rows)
