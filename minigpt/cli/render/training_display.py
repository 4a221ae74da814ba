"""The display of a training run: a live panel in a terminal, plain lines elsewhere."""

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from minigpt.cli.render.annotations import Annotations, annotations_of
from minigpt.edges import provided
from minigpt.tokenizer.display import one_line, visible
from minigpt.units import duration, shown_loss

if TYPE_CHECKING:
    from minigpt.runs.events import Event, Started
    from minigpt.training.events import Evaluation, Sample, Step


class TrainingDisplay:
    """Draws a run's events: a live panel in a terminal that can redraw lines, plain lines elsewhere."""

    def __init__(self, started: "Started", out: Console) -> None:
        from minigpt.device import resolve_device

        directory = started.directory
        self.out, self.device = out, resolve_device(started.device)
        self.name = f"{directory.parent.name}, {directory.name}" if started.is_teacher else directory.name
        self.total_steps, self.tokens_per_step = started.total_steps, started.tokens_per_step
        self.bits_unit = f"bits per byte {started.scored_text}".rstrip()
        self.annotations = annotations_of(started)
        self.is_evaluated = False
        self.stopping = False
        self.step = 0
        self.losses: list[float] = []  # the finite ones
        self.smoothed: float | None = None
        self.last_step: Step | None = None
        self.last_evaluation: Evaluation | None = None
        self.recent: deque[float] = deque(maxlen=20)  # seconds of the last steps
        self.steps, self.training_seconds = 0, 0.0  # without evaluations and saves
        self.live: Live | None = None
        panels = provided("panel")
        if panels and (out.is_interactive or (out.is_jupyter and find_spec("ipywidgets") is not None)):
            draw = partial(panels[0], self)
            self.live = Live(console=out, refresh_per_second=4, transient=True, get_renderable=draw)
        self.next_line = 0.0

    def __enter__(self) -> Self:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()

    def read_log(self, log: Iterable[Mapping[str, Any]]) -> None:
        """Reads the evaluations in a resumed run's log, so that nothing is announced twice."""
        if evaluations := [line for line in log if line.get("bits_per_byte") is not None]:
            self.is_evaluated = True
            self._print_lines(each.resumed(evaluations) for each in self.annotations)

    def stop(self) -> None:
        self.stopping = True

    def show(self, event: "Event") -> None:
        from minigpt.runs.events import Remark
        from minigpt.training.events import Evaluation, Notice, Sample, Step

        if isinstance(event, Step):
            self._step(event)
        elif isinstance(event, Evaluation):
            self._evaluation(event)
        elif isinstance(event, Sample):
            self.out.print(sample_panel(event, self.annotations))
        elif isinstance(event, Notice | Remark):
            self.out.print(Text(one_line(event.text), style="yellow"))

    def _step(self, event: "Step") -> None:
        if event.step <= self.step:  # the run rolled back to an earlier state
            self.next_line = min(self.next_line, event.progress)
        self.last_step, self.step = event, event.step
        if math.isfinite(event.loss):
            self.losses.append(event.loss)
            newest = max(0.05, 1 / len(self.losses))  # the mean of all, from the 20th on with weights that decay
            self.smoothed = event.loss if self.smoothed is None else (1 - newest) * self.smoothed + newest * event.loss
        self.recent.append(self.tokens_per_step / event.tokens_per_second)
        self.steps += 1
        self.training_seconds += self.recent[-1]
        if self.live is None and (event.progress >= self.next_line or event.step == 1):
            self.next_line = math.floor(event.progress * 50 + 1) / 50
            self.out.print(
                f"step {self.step_of_total(event.step)}  loss {loss_text(event)}  "
                f"{self.tokens_per_second():,.0f} tokens/s  learning rate {event.learning_rate:.3g}  "
                f"{duration(event.seconds_left)} left",
                soft_wrap=True,
            )

    def step_of_total(self, step: int) -> str:
        return f"{step:,}" if self.total_steps is None else f"{step:,}/{self.total_steps:,}"

    def tokens_per_second(self) -> float:
        return len(self.recent) * self.tokens_per_step / sum(self.recent)

    def _evaluation(self, event: "Evaluation") -> None:
        self.last_evaluation = event
        line = Text(f"step {event.step:>6,}  validation loss {shown_loss(event.validation_loss)}  ")
        line.append(f"{shown_loss(event.bits_per_byte)} {self.bits_unit}")
        line.append("  best so far, saved" if event.best else "", style="green")
        added = [each.evaluated(event) for each in self.annotations]
        line.append("".join(f"  {remark}" for remark, _ in added if remark), style="green")
        self.is_evaluated = True
        self.out.print(line)
        self._print_lines(lines for _, lines in added)

    def _print_lines(self, texts: Iterable[str]) -> None:
        for text in filter(None, texts):
            self.out.print(text)


def show(events: "Iterable[Event]") -> "Event | None":
    """Draws the events of `minigpt.fit()` until the run ends: plan, progress, samples. Returns the last event.

    In a terminal, and in a notebook that has ipywidgets, a live panel shows the progress; elsewhere lines do.

    >>> finished = minigpt.show(minigpt.fit("corpus.txt", steps=20))
    >>> finished.step
    20
    """
    from minigpt.cli.render.console import console
    from minigpt.cli.render.preparation import PreparationDisplay
    from minigpt.runs.events import Started

    out, last = console(), None
    with ExitStack() as stack:
        display: PreparationDisplay | TrainingDisplay = stack.enter_context(PreparationDisplay(out))
        for event in events:
            if isinstance(event, Started):
                stack.close()  # a distilled run starts twice
                display = stack.enter_context(TrainingDisplay(event, out))
            else:
                display.show(event)
            last = event
    return last


def loss_text(event: "Step") -> str:
    """The loss of a step, or a dash if no token was scored."""
    return shown_loss(event.loss) if event.is_scored else "-"


def sample_panel(event: "Sample", annotations: Sequence[Annotations] = ()) -> RenderableType:
    """A sample after its prompt, as the annotations draw it."""
    drawn = next(filter(None, (each.sampled(event) for each in annotations)), None)
    text, *lines = drawn or [Text(visible(event.text, is_text=True))]
    whole = Text(visible(event.prompt, is_text=True), style="bold")
    whole.append_text(Text(style="not bold").append_text(text))
    whole.rstrip()
    title = f"sample at step {event.step:,}" + (f", the most likely of {event.best_of}" if event.best_of > 1 else "")
    return Panel(Group(whole, *lines), title=title, title_align="left", border_style="dim")
