"""The loss curve of a run as a picture, drawn with matplotlib."""

import functools
import io
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from minigpt.optional_packages import optional_import
from minigpt.storage.folder import replace_file
from minigpt.tokenizer.display import visible


def draw_loss_curve(log: Iterable[Mapping[str, Any]], path: Path, baselines: Mapping[str, float] = {}) -> None:
    """Draws the training loss, raw and smoothed, and the validation loss over the steps, as a PNG or SVG.

    `baselines`, in bits per byte of the held-out text, are horizontal lines, except those that the untrained model
    already beats; the right axis has that unit.

    Raises: MissingPackageError without matplotlib; CheckpointError if the file cannot be written.
    """
    with optional_import("drawing a loss curve", "matplotlib"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

    records = list(log)
    training, validation = (
        [(record["step"], record[name]) for record in records if record.get(name) is not None]  # None: NaN or infinite
        for name in ("loss", "validation_loss")
    )
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    if training:
        steps, losses = zip(*training, strict=True)
        axes.plot(steps, losses, color="tab:blue", alpha=0.25, linewidth=0.8)
        axes.plot(steps, moving_average(losses), color="tab:blue", label="training, smoothed")
    if validation:
        steps, losses = zip(*validation, strict=True)
        axes.plot(steps, losses, color="tab:orange", marker="o", markersize=3, label="validation")
    bits = bits_per_nat(records)
    if bits is not None:
        to_bits, to_nats = functools.partial(np.multiply, bits), functools.partial(np.multiply, 1 / bits)
        right = axes.secondary_yaxis("right", functions=(to_bits, to_nats))
        right.set_ylabel("bits per byte (validation)")
        first = validation[0][1] * bits
        for name, level in baselines.items():
            if level > first:
                continue
            axes.axhline(level / bits, color="gray", linestyle="--", linewidth=0.8)
            axes.annotate(
                visible(name),
                (1, level / bits),
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
    picture = io.BytesIO()
    figure.savefig(picture, format=path.suffix.removeprefix(".") or "png", dpi=120)
    replace_file(path, picture.getvalue())


def bits_per_nat(log: Sequence[Mapping[str, Any]]) -> float | None:
    """The factor from nats per token to bits per byte on the validation text; None without an evaluation.

    It is the number of tokens per byte, divided by ln 2. The last evaluation counts: a resumed run may have another
    text.
    """
    for record in reversed(log):
        if record.get("validation_loss") and record.get("bits_per_byte"):
            return float(record["bits_per_byte"] / record["validation_loss"])
    return None


def moving_average(values: Sequence[float]) -> list[float]:
    """The mean of each value and its neighbors: up to a fiftieth of all values on either side.

    Being centered, it does not lag as the mean of the previous values would.
    """
    count, sums = len(values), [0.0, *accumulate(values)]
    reach = max(1, count // 50)
    windows = [(max(0, index - reach), min(count, index + reach + 1)) for index in range(count)]
    return [(sums[end] - sums[start]) / (end - start) for start, end in windows]
