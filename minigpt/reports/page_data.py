"""The data of a run on a report page: curves, samples and figures, thinned to what a screen can show."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minigpt.baselines.baselines import recorded_baselines
from minigpt.memorization.words import LONG_RUN, Extent
from minigpt.reports.headline import headline
from minigpt.reports.loss_curve import bits_per_nat, moving_average
from minigpt.reports.record_tables import record_tables
from minigpt.storage.run_record import CorpusRecord, Result, RunRecord
from minigpt.tokenizer.display import token_label
from minigpt.tokenizer.tokenizer import Tokenizer
from minigpt.units import count

_MOST_POINTS = 1500  # of a curve: more than a screen has pixels
_MOST_ROWS = 60  # samples, and evaluations of the passage
_NATS_PER_BIT = math.log(2)

Line = Mapping[str, Any]
"""A line of log.jsonl."""


@dataclass(frozen=True)
class LogLines:
    """The lines of a log by kind: steps, evaluations, samples."""

    steps: Sequence[Line]
    evaluations: Sequence[Line]
    samples: Sequence[Line]

    @classmethod
    def of(cls, log: Iterable[Line]) -> "LogLines":
        """The lines of a log; those whose loss was NaN or infinite are omitted."""
        steps, evaluations, samples = [], [], []
        for line in log:
            if line.get("loss") is not None:
                steps.append(line)
            if line.get("validation_loss") is not None:
                evaluations.append(line)
            if "sample" in line:
                samples.append(line)
        return cls(steps, evaluations, samples)


def page_data(record: RunRecord, name: str, lines: LogLines, *, is_training: bool = False) -> dict[str, Any]:
    """The data of a run on a page, from its record and its log, without the passage.

    The page of a run that is training shows its progress elsewhere, and not the result that it had before it was
    resumed.
    """
    if is_training:
        record = record.replace(result=None)
    steps, evaluations, result = lines.steps, lines.evaluations, record.result
    return {
        "name": name,
        "state": "training" if is_training else state_text(result, steps),
        "headline": headline(record, evaluations, steps[-1] if steps and not is_training else None),
        "bitsPerNat": _bits_per_nat(record.corpus, evaluations),
        "training": _training_curve(steps),
        "validation": evaluation_curve(evaluations),
        "bestStep": result and result.best_step,
        "learningRate": _curve(steps, "learning_rate"),
        "speed": _curve(steps, "tokens_per_second"),
        "baselines": [
            [baseline.name + "*" * baseline.is_partial, rounded(baseline.bits_per_byte)]
            for baseline in recorded_baselines(record)
        ],
        "samples": [_sample(line) for line in _thinned(lines.samples, _MOST_ROWS)],
        "tables": record_tables(record),
    }


def state_text(result: Result | None, steps: Sequence[Line]) -> str:
    """The progress or the end of the run, as text."""
    if result is None:
        return (
            f"not finished: {count(steps[-1]['step'], 'step')} so far" if steps else "not finished: no step was logged"
        )
    state = {"early stop": "stopped early", "diverged": "diverged"}.get(result.reason or "", "finished")
    return state if result.step is None else f"{state} after {count(result.step, 'step')}"


def _bits_per_nat(corpus: CorpusRecord | None, evaluations: Sequence[Line]) -> float | None:
    """The factor from nats per token to bits per byte: that of the validation part, else that of the training part."""
    if (of_validation := bits_per_nat(evaluations)) or corpus is None or not corpus.train_bytes:
        return of_validation
    return corpus.train_tokens / corpus.train_bytes / _NATS_PER_BIT


def evaluation_curve(evaluations: Sequence[Line]) -> dict[str, list[Any]]:
    """The validation loss and the bits per byte of the evaluations."""
    return _columns(evaluations, {"step": "step", "loss": "validation_loss", "bits": "bits_per_byte"})


def _training_curve(steps: Sequence[Line]) -> dict[str, list[Any]]:
    """The loss of the steps and its moving average, at the same steps."""
    means = moving_average([line["loss"] for line in steps])
    joined = [{"step": line["step"], "loss": line["loss"], "mean": m} for line, m in zip(steps, means, strict=True)]
    return _columns(_thinned(joined, _MOST_POINTS), {"step": "step", "loss": "loss", "mean": "mean"})


def _curve(lines: Sequence[Line], name: str) -> dict[str, list[Any]]:
    kept = _thinned([line for line in lines if line.get(name) is not None], _MOST_POINTS)
    return _columns(kept, {"step": "step", "value": name})


def _columns(lines: Sequence[Line], names: Mapping[str, str]) -> dict[str, list[Any]]:
    return {key: [rounded(line.get(name)) for line in lines] for key, name in names.items()}


def _thinned(lines: Sequence[Any], most: int) -> list[Any]:
    """At most `most` of the lines, evenly spread, including the first and the last."""
    if len(lines) <= most:
        return list(lines)
    return [lines[number * (len(lines) - 1) // (most - 1)] for number in range(most)]


def _sample(line: Line) -> dict[str, Any]:
    words = line.get("longest_copied_words")
    longest = None if words is None else Extent(words, line.get("longest_copied_unspaced") or 0)
    return {
        "step": line["step"],
        "prompt": line.get("prompt", ""),
        "text": line["sample"],
        "bestOf": line.get("best_of", 1),
        "longestRun": longest and rounded(longest.length),
        "longestText": longest and str(longest),
        "copiedShare": rounded(line.get("copied_share")),
        "minText": longest and longest.minimum(line.get("copied_at_least") or LONG_RUN),
        "copiedSpans": line.get("copied_spans", []),
    }


def passage_data(evaluations: Sequence[Line], tokenizer: Tokenizer) -> dict[str, Any] | None:
    """The validation passage with the surprisal of each token at each evaluation; None if none was measured."""
    measured = [line for line in evaluations if line.get("surprise")]
    if not measured:
        return None
    ids = measured[-1]["passage"]
    measured = [line for line in measured if line["passage"] == ids]  # a resumed run may have another text
    return {
        "tokens": [token_label(tokenizer, id) for id in ids],
        "rows": [{"step": line["step"], "bits": _bits(line["surprise"])} for line in _thinned(measured, _MOST_ROWS)],
    }


def _bits(nats: Sequence[float]) -> list[float]:
    return [rounded(value / _NATS_PER_BIT) for value in nats]


def rounded(value: Any) -> Any:
    """A number to six digits, None for NaN and infinity; anything else unchanged."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else None
