"""`minigpt info`: what a model is, and how it came to be."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minigpt.cli.options import CheckpointsOption, JsonOption

if TYPE_CHECKING:
    from minigpt.storage.run_record import RunRecord


def info(
    model: Annotated[
        str | None, typer.Argument(help="a run's name, or a path to a model of any format [newest]")
    ] = None,
    as_json: JsonOption = False,
    checkpoints: CheckpointsOption = Path("checkpoints"),
) -> None:
    """Show a model's configuration, size and training record.

    Examples:

    - `minigpt info`

    - `minigpt info gpt2 --json`
    """
    from minigpt.cli.render.console import console, facts
    from minigpt.cli.render.units import size
    from minigpt.importers.open_model import describe_model, find_model
    from minigpt.storage.checkpoint import TRAINING, WEIGHTS
    from minigpt.storage.files import read_json
    from minigpt.storage.run_record import RunRecord

    directory = find_model(model, checkpoints)
    config, tokenizer, notes = describe_model(directory)
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    path = directory / TRAINING
    training: dict[str, Any] = read_json(path) if path.exists() else {}
    file = directory if directory.is_file() else directory / WEIGHTS
    weights = file.stat().st_size if file.exists() else 0
    if as_json:
        record = {"directory": str(directory), "config": config.to_dict(), "parameters": config.n_parameters}
        record |= {"tokenizer": tokenizer.name, "weights_bytes": weights, "training": training or None}
        print(json.dumps(record))
        return
    rows = {
        "parameters": f"{config.n_parameters:,}",
        "weights": size(weights) if weights else f"no {WEIGHTS}",
        "tokenizer": f"{tokenizer.name}, {tokenizer.vocab_size:,} words",
        **{name: str(value) for name, value in config.to_dict().items()},
    }
    out = console(stderr=False)
    out.print(facts(str(directory), rows))
    if training:
        out.print(facts("training", _training_rows(RunRecord.from_dict(training, path))))


def _training_rows(record: "RunRecord") -> dict[str, str]:
    """The record as names and values, without those that are empty."""
    entries = record.to_dict()
    top = {name: entries[name] for name in ("started", "minigpt", "torch", "device", "from", "sources")}
    rows = {}
    for section in (top, *(entries[name] or {} for name in ("corpus", "training", "result"))):
        for name, value in section.items():
            if value not in (None, "", []):
                rows[name] = _shown(value)
    return rows


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)
