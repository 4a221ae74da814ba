"""`minigpt list`: the runs and models of a folder."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minigpt.cli.options import CheckpointsOption, JsonOption
from minigpt.cli.render.terminal import note, some_of, write
from minigpt.storage.names import plain_source
from minigpt.units import shown_loss, size

if TYPE_CHECKING:
    from minigpt.storage.model_list import ListedModel

_BITS = "bits per\nbyte"  # on two lines: the table fits a terminal of 80 characters
_NUMBERS = {"parameters", "disk", "minutes", _BITS}  # columns
_TEXT_WIDTH = 10  # at least; the name and the date stay whole


def list_models(as_json: JsonOption = False, checkpoints: CheckpointsOption = Path("checkpoints")) -> None:
    """List the runs and models in the folder of checkpoints, the newest first, and those that come with minigpt.

    Examples:

    - `minigpt list`
    - `minigpt list --json`
    """
    from minigpt.storage import model_list

    models = model_list.list_models(checkpoints)
    if as_json:
        write(json.dumps([_entry(model) for model in models]))
        return
    if all(model.kind == "shipped" for model in models):
        note(f"there is no run or model in {checkpoints}; train one with: minigpt train corpus.txt")
    if not models:
        return
    from rich.table import Table
    from rich.text import Text

    from minigpt.cli.render.console import console
    from minigpt.tokenizer.display import one_line

    rows = [_row(model) for model in models]
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0), pad_edge=False)
    for column in rows[0]:
        table.add_column(
            column,
            justify="right" if column in _NUMBERS else "left",
            no_wrap=column != "text",
            overflow="fold",
            min_width=_TEXT_WIDTH if column == "text" else None,
        )
    for row in rows:
        table.add_row(*(Text(one_line(value)) for value in row.values()))
    console(stderr=False).print(table)
    problems = [problem for model in models for problem in model.problems]
    for problem in some_of(problems):
        note(f"note: {problem}")


def _row(model: "ListedModel") -> dict[str, str]:
    result = model.record.result
    per_byte = result.bits_per_byte if result else None
    return {
        "name": model.name,
        "parameters": "-" if model.parameters is None else _rounded(model.parameters),
        "disk": size(model.disk_bytes),
        "text": _text(model),
        "minutes": f"{result.seconds / 60:.1f}" if result and result.seconds is not None else "-",
        _BITS: "-" if per_byte is None else shown_loss(per_byte),
        "date": time.strftime("%Y-%m-%d", time.localtime(model.modified)),
    }


def _text(model: "ListedModel") -> str:
    if model.kind != "run":
        return "(imported model)" if model.kind == "model" else "(comes with minigpt)"
    sources = [plain_source(source) for source in model.record.sources]
    named = ", ".join(sources[:2])
    if len(sources) > 2:
        named += f" and {len(sources) - 2:,} more"
    remarks = ["damaged record"] if model.problems else []
    if model.record.base:
        remarks.append(f"from {plain_source(model.record.base)}")
    if model.record.result is None and not model.problems:
        remarks.append("not finished")
    if model.record.result is not None and model.record.result.reason == "diverged":
        remarks.append("diverged")
    return " ".join([*([named] if named else []), *([f"({', '.join(remarks)})"] if remarks else [])]) or "-"


def _rounded(number: int) -> str:
    """A number of parameters as people say it: 1.1 M, 124 M, 1.6 G."""
    for unit, divisor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= divisor:
            value = number / divisor
            return f"{value:.1f} {unit}" if value < 100 else f"{value:.0f} {unit}"
    return str(number)


def _entry(model: "ListedModel") -> dict[str, Any]:
    record, result = model.record, model.record.result
    return {
        "name": model.name,
        "directory": str(model.directory),
        "kind": model.kind,
        "parameters": model.parameters,
        "disk_bytes": model.disk_bytes,
        "sources": list(record.sources),
        "from": record.base,
        "train_bytes": record.corpus.train_bytes if record.corpus else None,
        "started": record.started,
        "finished": result is not None,
        "steps": result.step if result else None,
        **{name: getattr(result, name, None) for name in ("seconds", "validation_loss", "bits_per_byte")},
        "modified": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(model.modified)),
        "problems": list(model.problems),
    }
