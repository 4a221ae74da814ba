"""The report of a run as an HTML page, made from its record and its log."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from minigpt.errors import CheckpointError, MinigptError
from minigpt.evaluation.recorded_baselines import recorded_baselines
from minigpt.inspection.surprisal import surprisal_of_weights
from minigpt.reports.loss_curve import bits_per_nat, moving_average
from minigpt.reports.page import page
from minigpt.storage.checkpoint import TRAINING
from minigpt.storage.folder import replace_file
from minigpt.storage.run import Run, read_record
from minigpt.storage.run_record import CorpusRecord, Result, RunRecord
from minigpt.tokenizer.display import token_label
from minigpt.tokenizer.tokenizer import Tokenizer

KIND = "report"
_SCRIPTS = ("chart", "report", "curves", "samples", "surprisal", "record")  # in assets/, in this order
_MOST_POINTS = 1500  # of a curve: more than a screen has pixels
_MOST_ROWS = 60  # samples, and evaluations of the passage
_NATS_PER_BIT = math.log(2)

Line = Mapping[str, Any]
"""A line of log.jsonl."""


def report_page(directories: Sequence[Path], problems: list[str] | None = None) -> str:
    """The page on one run, or on several side by side; an interrupted run is shown up to the end of its log.

    With a list of `problems`, damaged parts of the record and lines of the log are not shown, and the list gets a
    sentence on each.
    Raises: CheckpointError for a folder without a run, or without such a list for a damaged record or log.
    """
    runs = [run_data(directory, problems) for directory in directories]
    if len({run["name"] for run in runs}) < len(runs):
        for run, directory in zip(runs, directories, strict=True):
            run["name"] = str(directory)
    return page(" and ".join(run["name"] for run in runs), list(_SCRIPTS), {"runs": runs}, KIND)


def write_report(directories: Sequence[Path], path: Path, problems: list[str] | None = None) -> None:
    """Writes that page to a file, atomically.

    Raises: CheckpointError as `report_page`, or if the file cannot be written or its folder does not exist.
    """
    if not path.parent.is_dir():
        raise CheckpointError(f"{path} could not be written: the folder {path.parent} does not exist; create it first")
    replace_file(path, report_page(directories, problems).encode())


def run_data(directory: Path, problems: list[str] | None = None) -> dict[str, Any]:
    """The data of a run on a page.

    Raises: CheckpointError as `report_page`.
    """
    if not (directory / TRAINING).exists():
        raise CheckpointError(f"{directory} holds no training run (no {TRAINING}), so there is nothing to report")
    run = Run(directory, read_record(directory, problems))
    corpus, result = run.record.corpus, run.record.result
    log = list(run.read_log(problems))
    steps = [line for line in log if line.get("loss") is not None]
    evaluations = [line for line in log if line.get("validation_loss") is not None]
    passage, why_no_passage = _passage(run, evaluations)
    return {
        "name": directory.resolve().name,
        "state": _state(result, steps),
        "bitsPerNat": _bits_per_nat(corpus, evaluations),
        "training": _training_curve(steps),
        "validation": _columns(evaluations, {"step": "step", "loss": "validation_loss", "bits": "bits_per_byte"}),
        "bestStep": result and result.best_step,
        "learningRate": _curve(steps, "learning_rate"),
        "speed": _curve(steps, "tokens_per_second"),
        "baselines": [
            [baseline.label, _rounded(baseline.bits_per_byte)] for baseline in recorded_baselines(run.record)
        ],
        "samples": [_sample(line) for line in _thinned([line for line in log if "sample" in line], _MOST_ROWS)],
        "passage": passage,
        "whyNoPassage": why_no_passage,
        "tables": _tables(run.record),
    }


def _state(result: Result | None, steps: Sequence[Line]) -> str:
    """The progress or the end of the run, as text."""
    if result is None:
        return f"not finished: {steps[-1]['step']:,} steps so far" if steps else "not finished: no step was logged"
    state = "stopped early" if result.reason == "early stop" else "done"
    state += "" if result.step is None else f" after {result.step:,} steps"
    state += "" if result.seconds is None else f", {result.seconds / 60:.1f} minutes"
    if result.bits_per_byte is None:
        return state
    return f"{state}; {result.bits_per_byte:.4f} bits per byte on held-out text"


def _bits_per_nat(corpus: CorpusRecord | None, evaluations: Sequence[Line]) -> float | None:
    """The factor from nats per token to bits per byte: that of the validation part, else that of the training part."""
    if (of_validation := bits_per_nat(evaluations)) or corpus is None or not corpus.train_bytes:
        return of_validation
    return corpus.train_tokens / corpus.train_bytes / _NATS_PER_BIT


def _training_curve(steps: Sequence[Line]) -> dict[str, list[Any]]:
    """The loss of the steps and its moving average, at the same steps."""
    means = moving_average([line["loss"] for line in steps])
    joined = [{"step": line["step"], "loss": line["loss"], "mean": m} for line, m in zip(steps, means, strict=True)]
    return _columns(_thinned(joined, _MOST_POINTS), {"step": "step", "loss": "loss", "mean": "mean"})


def _curve(lines: Sequence[Line], name: str) -> dict[str, list[Any]]:
    kept = _thinned([line for line in lines if line.get(name) is not None], _MOST_POINTS)
    return _columns(kept, {"step": "step", "value": name})


def _columns(lines: Sequence[Line], names: Mapping[str, str]) -> dict[str, list[Any]]:
    return {key: [_rounded(line.get(name)) for line in lines] for key, name in names.items()}


def _thinned(lines: Sequence[Any], most: int) -> list[Any]:
    """At most `most` of the lines, evenly spread, including the first and the last."""
    if len(lines) <= most:
        return list(lines)
    return [lines[number * (len(lines) - 1) // (most - 1)] for number in range(most)]


def _sample(line: Line) -> dict[str, Any]:
    return {
        "step": line["step"],
        "prompt": line.get("prompt", ""),
        "text": line["sample"],
        "longestRun": line.get("longest_copied_words"),
        "copiedShare": _rounded(line.get("copied_share")),
        "minWords": line.get("copied_at_least"),
        "copiedSpans": line.get("copied_spans", []),
    }


def _passage(run: Run, evaluations: Sequence[Line]) -> tuple[dict[str, Any] | None, str]:
    """The validation passage with the surprisal of each token at each evaluation; None, and the reason, without one.

    For the log of an earlier version, which lacks the surprisal, the saved weights are measured.
    """
    try:
        measured = [line for line in evaluations if line.get("surprise")] or surprisal_of_weights(run)
        tokenizer = Tokenizer.load(run.directory)
    except MinigptError as error:  # the page shows the rest of the run
        return None, str(error)
    ids = measured[-1]["passage"]
    measured = [line for line in measured if line["passage"] == ids]  # a resumed run may have another text
    return {
        "tokens": [token_label(tokenizer, id) for id in ids],
        "rows": [{"step": line["step"], "bits": _bits(line["surprise"])} for line in _thinned(measured, _MOST_ROWS)],
    }, ""


def _bits(nats: Sequence[float]) -> list[float]:
    return [_rounded(value / _NATS_PER_BIT) for value in nats]


def _tables(record: RunRecord) -> list[dict[str, Any]]:
    """The record as tables: result, data, model, training settings, environment."""
    entries = record.to_dict()

    def part(name: str) -> dict[str, Any]:
        return entries[name] or {}

    data = {name: entries[name] for name in ("sources", "from", "tokenizer", "preset")}
    environment = {name: entries[name] for name in ("minigpt", "torch", "device", "started", "forecast")}
    tables = {
        "Result": part("result"),
        "Data": data | part("corpus") | part("reading"),
        "Model": part("model"),
        "Training": part("training"),
        "Environment": environment | part("environment"),
    }
    return [{"title": title, "rows": _rows(table)} for title, table in tables.items()]


def _rows(table: Line) -> list[list[str]]:
    return [[name.replace("_", " "), _shown(value)] for name, value in table.items() if value not in (None, "", [])]


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, float):
        return f"{value:.6g}"
    is_large = isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10_000
    return f"{value:,}" if is_large else str(value)


def _rounded(value: Any) -> Any:
    """A number to five digits, None for NaN and infinity; anything else unchanged."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.5g}") if math.isfinite(value) else None
