"""How things look in the terminal: consoles, small tables, units, and the display of a training run."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    import torch

    from minigpt.analysis.copying.copies import Copying
    from minigpt.text.corpus import Corpus
    from minigpt.training.events import Evaluation, Event, Finished, Sample, Step
    from minigpt.training.planning import Plan
    from minigpt.training.throughput import Peak

STOPPING = "finishing this step, then saving; once more stops at once"
_BLOCKS = "▁▂▃▄▅▆▇█"
_LAST_SAMPLES = 3  # that the summary speaks of


def console(*, stderr: bool = True) -> Console:
    """A console for one of the two streams; nothing in it is highlighted by guesswork."""
    return Console(stderr=stderr, highlight=False, soft_wrap=False)


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


def sparkline(values: list[float], width: int) -> str:
    """The values as a row of blocks, averaged down to `width` of them, the lowest at the bottom."""
    if not values:
        return ""
    count = min(width, len(values))
    edges = [i * len(values) // count for i in range(count + 1)]
    means = [math.fsum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round((mean - low) * scale)] for mean in means)


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


class TrainingDisplay:
    """Draws a run's events: a live panel in a terminal, plain lines elsewhere."""

    def __init__(
        self,
        out: Console,
        name: str,
        device: "torch.device",
        total_steps: int | None,
        baselines: Mapping[str, float],
    ) -> None:
        self.out, self.name, self.device, self.total_steps = out, name, device, total_steps
        self.unbeaten = dict(baselines)
        self.stopping = False
        self.step = 0
        self.losses: list[float] = []
        self.smoothed: float | None = None
        self.last_step: Step | None = None
        self.last_evaluation: Evaluation | None = None
        self.rates: list[float] = []
        self.copied: list[Copying] = []
        self.tokens, self.training_seconds = 0, 0.0  # evaluations and saves left out
        self.live: Live | None = None
        if out.is_terminal:
            self.live = Live(console=out, refresh_per_second=4, transient=True, get_renderable=self._panel)
        self.next_line = 0.0

    def __enter__(self) -> Self:
        if self.unbeaten:
            figures = ", ".join(f"{name} {figure:.2f}" for name, figure in _from_worst(self.unbeaten))
            self.out.print(f"to beat, in bits per byte of the held-out text: {figures}", markup=False)
        if self.live:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live:
            self.live.stop()

    def stop(self) -> None:
        """Draws that the run is about to stop."""
        self.stopping = True

    def show(self, event: "Event") -> None:
        """Takes in one event and draws what changed."""
        from minigpt.training.events import Evaluation, Notice, Sample, Step

        if isinstance(event, Step):
            self._step(event)
        elif isinstance(event, Evaluation):
            self.last_evaluation = event
            self.out.print(self._evaluation_line(event))
        elif isinstance(event, Sample):
            self.copied += [event.copying] if event.copying is not None else []
            self.out.print(self._sample(event))
        elif isinstance(event, Notice):
            self.out.print(Text(event.text, style="yellow"))

    def _step(self, event: "Step") -> None:
        self.last_step, self.step = event, event.step
        self.losses.append(event.loss)
        # The mean of the last ~20 steps, not biased towards the first.
        self.smoothed = event.loss if self.smoothed is None else 0.95 * self.smoothed + 0.05 * event.loss
        self.rates = [*self.rates[-19:], event.tokens_per_second]
        self.tokens += event.tokens // event.step
        self.training_seconds += event.tokens / event.step / event.tokens_per_second
        if self.live is None and (event.progress >= self.next_line or event.step == 1):
            self.next_line = math.floor(event.progress * 50 + 1) / 50
            left = self._left(event)
            self.out.print(
                f"step {self._of_total(event.step)}  loss {event.loss:.4f}  "
                f"{self._rate():,.0f} tokens/s  rate {event.learning_rate:.2e}  {left} left"
            )

    def _of_total(self, step: int) -> str:
        return f"{step:,}" if self.total_steps is None else f"{step:,}/{self.total_steps:,}"

    def _rate(self) -> float:
        return sum(self.rates) / max(1, len(self.rates))

    def _left(self, event: "Step") -> str:
        return duration(event.seconds * (1 - event.progress) / event.progress) if event.progress > 0 else "?"

    def _evaluation_line(self, event: "Evaluation") -> Text:
        line = Text(f"step {event.step:>6,}  validation loss {event.validation_loss:.4f}  ")
        line.append(f"{event.bits_per_byte:.4f} bits per byte")
        line.append("  best so far, saved" if event.best else "", style="green")
        beaten = [name for name, figure in _from_worst(self.unbeaten) if event.bits_per_byte < figure]
        if beaten:
            line.append(f"  better than {', '.join(beaten)}", style="green")
        self.unbeaten = {name: figure for name, figure in self.unbeaten.items() if name not in beaten}
        return line

    @staticmethod
    def _sample(event: "Sample") -> RenderableType:
        text = Text(event.prompt, style="bold")
        text.append(event.text.strip("\n"), style="not bold")
        title = f"sample at step {event.step:,}"
        if event.copying is not None:
            title += f" · longest run copied {count(event.copying.longest_words, 'word')}"
        return Panel(text, title=title, title_align="left", border_style="dim")

    def _panel(self) -> RenderableType:
        from minigpt.device import peak_memory

        event = self.last_step
        if event is None:
            return Text(f"{self.name}: measuring the untrained model …", style="dim")
        bar_width = 30
        filled = round(event.progress * bar_width)
        head = Text(f"{self.name}  ", style="bold")
        head.append("━" * filled, style="green")
        head.append("━" * (bar_width - filled), style="dim")
        head.append(
            f"  {event.progress:4.0%}  step {self._of_total(event.step)}  "
            f"{duration(event.seconds)} gone, {self._left(event)} left",
            style="not bold",
        )
        assert self.smoothed is not None
        grid = Table.grid(padding=(0, 3, 0, 0))
        evaluation = self.last_evaluation
        validation = "-"
        if evaluation:
            validation = f"{evaluation.validation_loss:.4f} ({evaluation.bits_per_byte:.4f} bits per byte)"
        grid.add_row(f"loss {event.loss:.4f}", f"smoothed {self.smoothed:.4f}", f"validation {validation}")
        grid.add_row(
            f"{self._rate():,.0f} tokens/s",
            f"rate {event.learning_rate:.2e}",
            f"memory {size(peak_memory(self.device))}",
        )
        loss_line = Text(sparkline(self.losses, max(10, min(60, self.out.width - 10))), style="cyan")
        parts: list[RenderableType] = [head, grid, Text("loss ").append_text(loss_line)]
        if self.stopping:
            parts.append(Text(STOPPING, style="yellow"))
        return Group(*parts)


def plan_table(made: "Plan", corpus: "Corpus", title: str, device: str) -> Table:
    """What was chosen for a run, and the flag that changes each."""
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
    finish = time.strftime("%H:%M:%S", time.localtime(time.time() + seconds))
    epochs = steps * made.tokens_per_step / len(corpus.train)
    arithmetic = f"{training.dtype}: {made.why_dtype}" if made.why_dtype else training.dtype
    rows = [
        ("text", f"{size(corpus.train_bytes)}, {held_out}", "--validation-fraction"),
        ("tokenizer", f"{corpus.tokenizer.name}, {corpus.tokenizer.vocab_size:,} words", "--tokenizer"),
        ("tokens", f"{len(corpus.train):,} of {per_token:.2f} bytes", ""),
        ("model", f"{made.preset}, {model.n_parameters:,} parameters", "--preset"),
        ("", f"{model.n_layer} layers, {model.n_head} heads, {model.n_embd} wide", "--n-layer --n-head --n-embd"),
        ("context", f"{training.context_length} tokens", "--context-length"),
        ("dropout", f"{model.dropout:g}", "--dropout"),
        ("batch", f"{training.sequences_per_step} sequences, {made.tokens_per_step:,} tokens a step", "--batch-size"),
        ("optimizer", f"{training.optimizer}, rate {training.learning_rate:g}", "--optimizer --learning-rate"),
        ("schedule", training.schedule, "--schedule --cooldown"),
        ("length", f"{length}, done at {finish}", "--minutes --steps --epochs"),
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


def speed(tokens_per_second: float, flops_per_token: float, peak: "Peak") -> str:
    """How fast training went, as tokens and as a share of what the device's arithmetic could do."""
    flops = tokens_per_second * flops_per_token
    return f"{tokens_per_second:,.0f} tokens/s, {flops / peak.flops:.0%} of the arithmetic here ({peak.source})"


def copied(samples: "Sequence[Copying]") -> str | None:
    """What the last of a run's samples copy from its text, None where there are none."""
    if not samples:
        return None
    last = samples[-_LAST_SAMPLES:]
    longest = max(sample.longest_words for sample in last)
    words, within = sum(sample.words for sample in last), sum(sample.copied_words for sample in last)
    share = within / words if words else 0.0
    which = f"last {len(last)} samples" if len(last) > 1 else "last sample"
    return f"{share:.0%} of the {which}, in runs of {last[-1].at_least} words or more; longest {count(longest, 'word')}"


def standing(log: Iterable[Mapping[str, Any]], baselines: Mapping[str, float]) -> str | None:
    """Which baselines a run ends below and since when, and which not; None where there are none."""
    from minigpt.analysis.corpus.baselines import beaten_since

    since = beaten_since(log, baselines)
    above = [f"not than {name} ({figure:.2f})" for name, figure in _from_worst(baselines) if name not in since]
    below = [f"{name} since step {since[name]:,}" for name, _ in _from_worst(baselines) if name in since]
    return ", ".join(below + above) or None


def _from_worst(baselines: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(baselines.items(), key=lambda baseline: -baseline[1])


def summary(event: "Finished", speed: str, directory: str, better: str | None, copied: str | None) -> RenderableType:
    """What a run came to."""
    rows = {"steps": f"{event.step:,} in {duration(event.seconds)}", "speed": speed}
    if event.validation_loss is not None and event.bits_per_byte is not None:
        rows["best weights"] = f"step {event.best_step:,}"
        rows["validation loss"] = f"{event.validation_loss:.4f} nats per token, all {event.validation_tokens:,} tokens"
        rows["perplexity"] = f"{math.exp(min(700.0, event.validation_loss)):.2f} per token"
        rows["bits per byte"] = f"{event.bits_per_byte:.4f}"
    if better is not None:
        rows["better than"] = better
    if copied is not None:
        rows["copied"] = copied
    rows["saved in"] = directory
    return facts("stopped early: validation no longer improves" if event.reason == "early stop" else "done", rows)
