"""A run's report: what its record and its log tell, as the data of a page; it trains nothing."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from minigpt.errors import CheckpointError, MinigptError
from minigpt.evaluation.recorded_baselines import recorded_baselines
from minigpt.inspection.surprisal import surprisal_of_weights
from minigpt.reports.loss_curve import bits_per_nat, moving_mean
from minigpt.reports.page import page
from minigpt.reports.validation import check_log
from minigpt.storage.checkpoint import TRAINING
from minigpt.storage.files import atomic_write
from minigpt.storage.run import Run, read_record
from minigpt.storage.run_record import CorpusRecord, Result, RunRecord
from minigpt.tokenizer.display import token_label
from minigpt.tokenizer.tokenizer import Tokenizer

_SCRIPTS = ("chart", "report", "curves", "samples", "surprise", "records")  # of assets/
_MOST_POINTS = 1500  # of a curve: more than a screen has
_MOST_ROWS = 60  # samples, and evaluations of the passage
_UNITS = math.log(2)

Line = Mapping[str, Any]
"""A line of log.jsonl."""


def report_page(directories: Sequence[Path]) -> str:
    """The page of one run, or of several beside one another; a run that was broken off shows what there is.

    Raises: CheckpointError for a folder without a run, and for a record or a log that is damaged.
    """
    runs = [run_data(directory) for directory in directories]
    if len({run["name"] for run in runs}) < len(runs):
        for run, directory in zip(runs, directories, strict=True):
            run["name"] = str(directory)
    return page(" and ".join(run["name"] for run in runs), list(_SCRIPTS), {"runs": runs})


def write_report(directories: Sequence[Path], path: Path) -> None:
    """Puts that page into a file, all at once.

    Raises: CheckpointError, as `report_page`, and where the file cannot be written, or its folder is not there.
    """
    if not path.parent.is_dir():
        raise CheckpointError(f"{path} could not be written: there is no folder {path.parent}; make it first")
    atomic_write(path, report_page(directories).encode())


def run_data(directory: Path) -> dict[str, Any]:
    """What a page shows of a run.

    Raises: CheckpointError, as `report_page`.
    """
    if not (directory / TRAINING).exists():
        raise CheckpointError(f"{directory} holds no training run (no {TRAINING}), so there is nothing to report")
    run = Run(directory, read_record(directory))
    corpus, result = _corpus(run), _result(run)
    log = list(run.read_log())
    check_log(log, run.log_path)
    steps = [line for line in log if line.get("loss") is not None]
    evaluations = [line for line in log if line.get("validation_loss") is not None]
    passage, why_none = _passage(run, evaluations)
    return {
        "name": directory.resolve().name,
        "state": _state(result, steps),
        "bitsPerNat": _bits_per_nat(corpus, evaluations),
        "training": _training_curve(steps),
        "validation": _columns(evaluations, {"step": "step", "loss": "validation_loss", "bits": "bits_per_byte"}),
        "bestStep": result and result.best_step,
        "rate": _curve(steps, "learning_rate"),
        "speed": _curve(steps, "tokens_per_second"),
        "baselines": [[one.label, _rounded(one.bits_per_byte)] for one in recorded_baselines(run.record)],
        "samples": [_sample(line) for line in _thinned([line for line in log if "sample" in line], _MOST_ROWS)],
        "passage": passage,
        "whyNoPassage": why_none,
        "tables": _tables(run.record),
    }


def _corpus(run: Run) -> CorpusRecord:
    if run.record.corpus is None:
        raise CheckpointError(
            f"{run.directory / TRAINING} has no 'corpus', which a page needs; a run that train() began in Python has "
            "only what its record was given"
        )
    return run.record.corpus


def _result(run: Run) -> Result | None:
    """The result of a run that has ended, of which a page needs these entries."""
    for name in ("step", "best_step", "reason", "seconds") if run.record.result else ():
        if getattr(run.record.result, name) is None:
            path = run.directory / TRAINING
            raise CheckpointError(f"{path} is damaged: in its 'result': {name} is None; copy it again")
    return run.record.result


def _state(result: Result | None, steps: Sequence[Line]) -> str:
    """How far the run is, as text."""
    if result is None:
        return f"not finished: {steps[-1]['step']:,} steps so far" if steps else "not finished: no step was logged"
    why = "stopped early" if result.reason == "early stop" else "done"
    return f"{why} after {result.step:,} steps, {(result.seconds or 0) / 60:.1f} minutes"


def _bits_per_nat(corpus: CorpusRecord, evaluations: Sequence[Line]) -> float | None:
    """What turns nats per token into bits per byte: of the held-out part as measured, else of the training part."""
    of_training = corpus.train_tokens / corpus.train_bytes / _UNITS if corpus.train_bytes else None
    return bits_per_nat(evaluations) or of_training


def _training_curve(steps: Sequence[Line]) -> dict[str, list[Any]]:
    """The loss of the steps and its moving mean, thinned alike."""
    means = moving_mean([line["loss"] for line in steps])
    joined = [{"step": line["step"], "loss": line["loss"], "mean": m} for line, m in zip(steps, means, strict=True)]
    return _columns(_thinned(joined, _MOST_POINTS), {"step": "step", "loss": "loss", "mean": "mean"})


def _curve(lines: Sequence[Line], name: str) -> dict[str, list[Any]]:
    kept = _thinned([line for line in lines if line.get(name) is not None], _MOST_POINTS)
    return _columns(kept, {"step": "step", "value": name})


def _columns(lines: Sequence[Line], names: Mapping[str, str]) -> dict[str, list[Any]]:
    return {key: [_rounded(line.get(name)) for line in lines] for key, name in names.items()}


def _thinned(lines: Sequence[Any], most: int) -> list[Any]:
    """At most so many of the lines, evenly spread, the first and the last among them."""
    if len(lines) <= most:
        return list(lines)
    return [lines[number * (len(lines) - 1) // (most - 1)] for number in range(most)]


def _sample(line: Line) -> dict[str, Any]:
    return {
        "step": line["step"],
        "prompt": line.get("prompt", ""),
        "text": line["sample"],
        "words": line.get("longest_copied_words"),
        "share": _rounded(line.get("copied_share")),
        "atLeast": line.get("copied_at_least"),
        "spans": line.get("copied_spans", []),
    }


def _passage(run: Run, evaluations: Sequence[Line]) -> tuple[dict[str, Any] | None, str]:
    """The validation passage whose every token was measured at each evaluation, or, where the log of an earlier version
    has none, by the weights there are; None where there are none either, and why."""
    try:
        measured = [line for line in evaluations if line.get("surprise")] or surprisal_of_weights(run)
        tokenizer = Tokenizer.load(run.directory)
    except MinigptError as error:  # what is left of the run is shown all the same
        return None, str(error)
    ids = measured[-1]["passage"]
    measured = [line for line in measured if line["passage"] == ids]  # the run may have gone on with another text
    return {
        "tokens": [token_label(tokenizer, id) for id in ids],
        "rows": [{"step": line["step"], "bits": _bits(line["surprise"])} for line in _thinned(measured, _MOST_ROWS)],
    }, ""


def _bits(nats: Sequence[float]) -> list[float]:
    return [_rounded(value / _UNITS) for value in nats]


def _tables(record: RunRecord) -> list[dict[str, Any]]:
    """The record as tables: the result, the data with its hashes, the model, the settings, the environment."""
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
    many = isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10_000
    return f"{value:,}" if many else str(value)


def _rounded(value: Any) -> Any:
    """A number to five digits, which is as exact as a curve is read; anything else as it is."""
    return float(f"{value:.5g}") if isinstance(value, float) and math.isfinite(value) else _plain(value)


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) else value
