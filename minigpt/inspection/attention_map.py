"""One attention map as a PNG or SVG, drawn with matplotlib where it is installed."""

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from minigpt.errors import ConfigError
from minigpt.inspection.activations import Inspection

_READABLE = 128  # labels on an axis; more would lie over one another


def draw_map(inspection: Inspection, labels: Sequence[str], path: Path, *, layer: int, head: int) -> None:
    """Draws what each token, a row, takes from every token, a column; layers and heads count from 0.

    Raises: ConfigError without matplotlib, for a layer or head that is not there, and where it cannot be written.
    """
    check_place(inspection.attention.shape[0], inspection.attention.shape[1], layer, head)
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.colors import PowerNorm
        from matplotlib.figure import Figure
        from matplotlib.ticker import NullLocator
    except ModuleNotFoundError as error:
        raise ConfigError("a picture of a map needs matplotlib: pip install 'minigpt[plot]'") from error

    words = [label.replace("$", r"\$") for label in labels]  # between two of them matplotlib reads mathematics
    side = min(14.0, 3.5 + 0.16 * len(words))  # inches
    figure = Figure(figsize=(side + 1, side), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    weights = np.ma.array(inspection.attention[layer, head].numpy())  # (T, T)
    weights[np.triu_indices(len(words), 1)] = np.ma.masked  # not small weights but none
    scale = PowerNorm(0.5, vmin=0, vmax=1)  # most weights are small
    image = axes.imshow(weights, cmap="cividis", norm=scale, interpolation="nearest")
    figure.colorbar(image, shrink=0.7, label="attention weight")
    axes.set_title(f"layer {layer}, head {head}")
    axes.set_xlabel("attends to")
    axes.set_ylabel("token")
    if len(words) <= _READABLE:
        size = max(4, min(9, 620 / len(words)))
        axes.set_xticks(range(len(words)), words, rotation=90, fontsize=size)
        axes.set_yticks(range(len(words)), words, fontsize=size)
    else:
        axes.xaxis.set_major_locator(NullLocator())
        axes.yaxis.set_major_locator(NullLocator())
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing")  # a script its font lacks is drawn as boxes
            figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:  # a folder that is not there; an ending that is no picture's
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{path} cannot be written ({reason}); give a file such as map.png") from error


def check_place(n_layer: int, n_head: int, layer: int, head: int) -> None:
    """That a model has this layer and head.

    Raises: ConfigError.
    """
    for name, place, count in (("layer", layer, n_layer), ("head", head, n_head)):
        if not 0 <= place < count:
            raise ConfigError(f"{name} ({place}) must be from 0 to {count - 1} for this model")
