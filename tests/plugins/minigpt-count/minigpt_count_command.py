"""`minigpt count`."""

from collections import Counter
from pathlib import Path

from minigpt.cli.options import CheckpointsOption, ModelArgument
from minigpt.cli.render.terminal import write


def count(model: ModelArgument = None, checkpoints: CheckpointsOption = Path("checkpoints")) -> None:
    """Print how many parameters each part of a model has."""
    from minigpt.cli.models import open_model  # imports torch, which --help does not need

    parts: Counter[str] = Counter()
    for name, parameter in open_model(model, checkpoints, "cpu").model.named_parameters():
        parts[name.partition(".")[0]] += parameter.numel()
    for part, number in parts.items():
        write(f"{part:20} {number:>12,}")
