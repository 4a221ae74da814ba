"""The record of a run as tables with plain names and units, without the folders of this machine."""

from collections.abc import Callable, Mapping
from typing import Any

from minigpt.storage.names import plain_source
from minigpt.storage.run_record import RunRecord
from minigpt.units import duration, shown_loss, size

_NAMES = {
    # result
    "step": "steps",
    "reason": "ended by",
    "best_step": "step of the best weights",
    "validation_loss": "validation loss, in nats per token",
    "validation_tokens": "held-out tokens",
    "seconds": "training time",
    # data
    "sources": "text",
    "from": "fine-tuned from",
    "fingerprint": "hash of the tokens",
    "train_bytes": "training text",
    "validation_bytes": "held-out text",
    "train_tokens": "training tokens",
    "text_key": "field of a .jsonl line",
    "encoding_errors": "bytes that are not UTF-8",
    "validation_fraction": "fraction held out",
    # model
    "vocab_size": "vocabulary, in tokens",
    "n_positions": "longest context, in tokens",
    "n_embd": "width",
    "n_layer": "layers",
    "n_head": "attention heads",
    # training
    "context_length": "context, in tokens",
    "batch_size": "sequences per step",
    "batch_tokens": "tokens per step",
    "micro_batch_size": "sequences per forward pass",
    "schedule": "learning-rate schedule",
    "cooldown": "fraction of cool-down",
    "final_learning_rate": "final learning rate, fraction of the peak",
    "bpe_dropout": "BPE-dropout",
    "grad_clip": "maximum gradient norm",
    "spike_threshold": "loss-spike threshold, in standard deviations",
    "eval_every": "steps between evaluations",
    "eval_tokens": "tokens per evaluation",
    "sample_every": "steps between samples",
    "save_every": "steps between saves",
    "save_minutes": "minutes between saves, at most",
    "patience": "evaluations without improvement before the stop",
    "seed": "random seed",
    "devices": "processes",
    "dtype": "number format",
    # environment
    "minigpt": "minigpt version",
    "torch": "PyTorch version",
    "python": "Python version",
    "cpu": "processor",
    "gpu": "GPU",
    "cores": "processor cores",
    "forecast": "expected bits per byte",
}
_REASONS = {"length": "its length", "early stop": "early stopping", "diverged": "divergence"}
_VALUES: Mapping[str, Callable[[Any], str]] = {
    "validation_loss": shown_loss,
    "bits_per_byte": shown_loss,
    "seconds": duration,
    "train_bytes": size,
    "validation_bytes": size,
    "sources": lambda names: ", ".join(map(plain_source, names)),
    "from": plain_source,
    "forecast": lambda bounds: " to ".join(f"{bound:.2f}" for bound in bounds),
    "started": lambda time: time[:16].replace("T", " "),
    "reason": lambda reason: _REASONS.get(reason, reason),
}
_TABLES = {
    "Result": ("result",),
    "Data": ("sources", "from", "tokenizer", "preset", "corpus", "reading"),
    "Model": ("model",),
    "Training": ("training",),
    "Environment": ("minigpt", "torch", "device", "started", "forecast", "environment"),
}
_LOCAL = {"path"}  # where this machine keeps a file


def record_tables(record: RunRecord) -> list[dict[str, Any]]:
    """The tables of a record: result, data, model, training settings, environment, plan.

    Each has rows of name and value.
    """
    entries = record.to_dict()
    tables: list[dict[str, Any]] = []
    for title, parts in _TABLES.items():
        values: dict[str, Any] = {}
        for part in parts:
            values |= entries[part] if isinstance(entries[part], dict) else {part: entries[part]}
        tables.append(
            {"title": title, "rows": [_row(name, value) for name, value in values.items() if _has(name, value)]}
        )
    return [*tables, {"title": "Plan", "rows": _plan_rows(record.other.get("plan"))}]


def _plan_rows(recorded: object) -> list[list[str]]:
    """The table of the plan, with the lines that continue another in its row. Empty without a plan or if damaged."""
    rows: list[list[str]] = []
    for row in recorded if isinstance(recorded, list | tuple) else ():
        if not (isinstance(row, list | tuple) and len(row) == 3 and all(isinstance(cell, str) for cell in row)):
            return []
        name, value, options = row
        value += f" ({options})" if options else ""
        if name or not rows:
            rows.append([name, value])
        else:
            rows[-1][1] += f"; {value}"
    return rows


def _has(name: str, value: object) -> bool:
    return name not in _LOCAL and value not in (None, "", [], {})


def _row(name: str, value: Any) -> list[str]:
    return [_NAMES.get(name, name.replace("_", " ")), _VALUES.get(name, _shown)(value)]


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, float):
        return f"{value:.6g}"
    is_large = isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10_000
    return f"{value:,}" if is_large else str(value)
