"""Pictures of a run's log, drawn with matplotlib where it is installed."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def draw_losses(log: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Draws the training loss, smoothed and raw, and the validation loss against the steps, as a PNG or SVG.

    Raises: ModuleNotFoundError without matplotlib.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    records = list(log)
    training = [(record["step"], record["loss"]) for record in records if "loss" in record]
    validation = [(record["step"], record["validation_loss"]) for record in records if "validation_loss" in record]
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    if training:
        steps, losses = zip(*training, strict=True)
        axes.plot(steps, losses, color="tab:blue", alpha=0.25, linewidth=0.8)
        axes.plot(steps, _smoothed(losses), color="tab:blue", label="training, smoothed")
    if validation:
        steps, losses = zip(*validation, strict=True)
        axes.plot(steps, losses, color="tab:orange", marker="o", markersize=3, label="validation")
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per token)")
    axes.grid(alpha=0.3)
    if training or validation:
        axes.legend()
    figure.savefig(path, dpi=120)


def _smoothed(values: Iterable[float]) -> list[float]:
    """An exponential mean over about 50 values that starts at the first."""
    smoothed: list[float] = []
    for value in values:
        smoothed.append(value if not smoothed else 0.98 * smoothed[-1] + 0.02 * value)
    return smoothed
