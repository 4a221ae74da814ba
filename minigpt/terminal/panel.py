"""The live panel of a run in a terminal that can redraw lines."""

import math
import sys
from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import psutil
import torch
from rich.console import Group, RenderableType
from rich.text import Text

from minigpt.cli.render.training_display import loss_text
from minigpt.tokenizer.display import one_line
from minigpt.units import duration, shown_loss, size

if TYPE_CHECKING:
    from minigpt.cli.render.training_display import TrainingDisplay

_STOPPING = "stopping and saving; Ctrl-C again stops without saving"
_BLOCKS = "▁▂▃▄▅▆▇█"
_BAR, _NAME, _SPARKLINE = 30, 24, 60  # columns, at most


def panel(display: "TrainingDisplay") -> RenderableType:
    """The progress of a run in a few lines, none of which is wider than the terminal."""
    event, evaluation = display.last_step, display.last_evaluation
    if event is None:
        what = "running the first step" if display.is_evaluated else "evaluating the untrained model"
        return _line(f"{one_line(display.name)}: {what} …", style="dim")
    left = f"{duration(event.seconds_left)} left"
    if event.progress >= 1:  # the seconds left would stand still
        left = "last evaluation …" if evaluation else "saving the model …"
    times = f"  {event.progress:4.0%}  {duration(event.seconds)} elapsed, {left}"
    head = _line(one_line(display.name), style="bold")
    head.truncate(max(4, min(_NAME, display.out.width - len(times) - 12)), overflow="ellipsis")
    bar_width = max(0, min(_BAR, display.out.width - head.cell_len - len(times) - 2))
    filled = round(event.progress * bar_width)
    head.append("  " + "━" * filled, style="green")
    head.append("━" * (bar_width - filled), style="dim")
    head.append(times, style="not bold")
    figures = [f"step {display.step_of_total(event.step):13}", f"loss {loss_text(event):7}"]
    figures += [] if display.smoothed is None else [f"smoothed {shown_loss(display.smoothed):7}"]
    if evaluation:
        figures += [f"validation {shown_loss(evaluation.validation_loss):7}"]
        figures += [f"{shown_loss(evaluation.bits_per_byte)} {display.bits_unit}"]
    figures += [f"{display.tokens_per_second():,.0f} tokens/s".ljust(16), f"learning rate {event.learning_rate:<8.3g}"]
    figures += [f"memory {size(peak_memory(display.device))}"]
    loss_line = Text(sparkline(display.losses, max(10, min(_SPARKLINE, display.out.width - 10))), style="cyan")
    lines = [head, *map(_line, packed(figures, display.out.width)), _line("loss ").append_text(loss_line)]
    return Group(*lines, *([_line(_STOPPING, style="yellow")] if display.stopping else []))


def _line(text: str, **style: Any) -> Text:
    """A line that is cut at the edge of the terminal: one that wraps cannot be erased."""
    return Text(text, no_wrap=True, overflow="ellipsis", **style)


def packed(cells: Iterable[str], width: int) -> list[str]:
    """The cells in as few lines of this width as they need, with two spaces between them."""
    lines: list[str] = []
    for cell in cells:
        if lines and len(lines[-1]) + 2 + len(cell.rstrip()) <= width:
            lines[-1] += f"  {cell}"
        else:
            lines.append(cell)
    return lines


def sparkline(values: list[float], width: int) -> str:
    """The values as a row of at most `width` blocks, each the mean of some neighbors, lowest to highest."""
    if not values:
        return ""
    count = min(width, len(values))
    edges = [i * len(values) // count for i in range(count + 1)]
    means = [math.fsum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round((mean - low) * scale)] for mean in means)


def peak_memory(device: torch.device) -> int:
    """Peak memory in bytes: what PyTorch has allocated on a CUDA device, else the process's resident set size."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":  # it has no getrusage
        return int(psutil.Process().memory_info().peak_wset)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
