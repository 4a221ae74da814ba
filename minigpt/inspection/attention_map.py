"""Draws an attention map as an image file with matplotlib."""

import io
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from minigpt.errors import ConfigError
from minigpt.inspection.activations import Inspection
from minigpt.optional_packages import optional_import
from minigpt.storage.folder import replace_file

MARK = "minigpt inspect --png"  # in every map, if its format has a place for it
_MARKED = {".png", ".svg", ".pdf", ".ps", ".eps"}
_MAX_LABELS = 128  # on an axis; more would overlap


def draw_map(inspection: Inspection, labels: Sequence[str], path: Path, *, layer: int, head: int) -> None:
    """Draws how much each token (row) attends to every token (column); layers and heads are counted from 0.

    Raises: ConfigError if the layer or head does not exist, or matplotlib does not know the file's extension;
    CheckpointError if the file cannot be written, which then is unchanged; MissingPackageError without matplotlib.
    """
    check_layer_and_head(inspection.attention.shape[0], inspection.attention.shape[1], layer, head)
    with optional_import("drawing an attention map", "matplotlib"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.colors import PowerNorm
        from matplotlib.figure import Figure
        from matplotlib.ticker import NullLocator

    labels = [label.replace("$", r"\$") for label in labels]  # matplotlib reads text between two $ as mathematics
    side = min(14.0, 3.5 + 0.16 * len(labels))  # inches
    figure = Figure(figsize=(side + 1, side), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    weights = np.ma.array(inspection.attention[layer, head].numpy())  # (T, T)
    weights[np.triu_indices(len(labels), 1)] = np.ma.masked  # impossible, so drawn as empty instead of small
    scale = PowerNorm(0.5, vmin=0, vmax=1)  # most weights are small
    image = axes.imshow(weights, cmap="cividis", norm=scale, interpolation="nearest")
    figure.colorbar(image, shrink=0.7, label="attention weight")
    axes.set_title(f"layer {layer}, head {head}")
    axes.set_xlabel("attends to")
    axes.set_ylabel("token")
    if len(labels) <= _MAX_LABELS:
        size = max(4, min(9, 620 / len(labels)))
        axes.set_xticks(range(len(labels)), labels, rotation=90, fontsize=size)
        axes.set_yticks(range(len(labels)), labels, fontsize=size)
    else:
        axes.xaxis.set_major_locator(NullLocator())
        axes.yaxis.set_major_locator(NullLocator())
    picture = io.BytesIO()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing")  # characters missing in the font become boxes
            form = path.suffix[1:].lower() or "png"
            marks = {"Creator": MARK} if f".{form}" in _MARKED else None
            figure.savefig(picture, dpi=120, format=form, metadata=marks)
    except ValueError as error:  # an unknown file extension
        raise ConfigError(f"{path} cannot be written ({error}); give a file name such as map.png") from error
    replace_file(path, picture.getvalue())


def check_layer_and_head(n_layer: int, n_head: int, layer: int, head: int) -> None:
    """Checks that a model has this layer and head.

    Raises: ConfigError.
    """
    for name, index, count in (("layer", layer, n_layer), ("head", head, n_head)):
        if not 0 <= index < count:
            raise ConfigError(f"{name} ({index}) must be from 0 to {count - 1} for this model")
