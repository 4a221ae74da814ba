"""Pictures of a run's log, drawn with matplotlib where it is installed."""

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def draw_losses(log: Iterable[Mapping[str, Any]], path: Path, baselines: Mapping[str, float] = {}) -> None:
    """Draws the training loss, smoothed and raw, and the validation loss against the steps, as a PNG or SVG.

    `baselines`, in bits per byte of the held-out text, are lines across it, those that the untrained model is not below
    already; a second axis is in that unit.
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
    nats = nats_per_bit(records)
    if nats is not None:
        to_bits, to_nats = functools.partial(_times, 1 / nats), functools.partial(_times, nats)
        right = axes.secondary_yaxis("right", functions=(to_bits, to_nats))
        right.set_ylabel("bits per byte (validation)")
        first = validation[0][1] / nats
        for name, bits in baselines.items():
            if bits > first:
                continue
            axes.axhline(bits * nats, color="gray", linestyle="--", linewidth=0.8)
            axes.annotate(
                name,
                (1, bits * nats),
                xycoords=axes.get_yaxis_transform(),
                ha="right",
                va="bottom",
                fontsize=8,
                color="dimgray",
            )
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per token)")
    axes.grid(alpha=0.3)
    if training or validation:
        axes.legend()
    figure.savefig(path, dpi=120)


def nats_per_bit(log: Iterable[Mapping[str, Any]]) -> float | None:
    """Nats per token for each bit per byte, which is the same at every evaluation of a run; None where there is none.

    It is the tokenizer's: how many bytes a token of the validation text has, times ln 2.
    """
    for record in log:
        if record.get("bits_per_byte"):
            return record["validation_loss"] / record["bits_per_byte"]
    return None


def _times(factor: float, values: Any) -> Any:
    return factor * values


def _smoothed(values: Iterable[float]) -> list[float]:
    """An exponential mean over about 50 values that starts at the first."""
    smoothed: list[float] = []
    for value in values:
        smoothed.append(value if not smoothed else 0.98 * smoothed[-1] + 0.02 * value)
    return smoothed
