"""The display of a training run for Python users, in a terminal or a notebook."""

from collections.abc import Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from minigpt.cli.render.console import console
from minigpt.cli.render.preparation import PreparationDisplay
from minigpt.cli.render.training_display import TrainingDisplay

if TYPE_CHECKING:
    from minigpt.jobs.events import Event


def show(events: "Iterable[Event]") -> "Event | None":
    """Draws the events of `minigpt.fit()` until the run ends: plan, progress, samples. Returns the last event.

    In a terminal, and in a notebook that has ipywidgets, a live panel shows the progress; elsewhere lines do.

    >>> finished = minigpt.show(minigpt.fit("corpus.txt", steps=20))
    >>> finished.step
    20
    """
    from minigpt.jobs.events import Started

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
