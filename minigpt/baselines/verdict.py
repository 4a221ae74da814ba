"""The verdict on a run: where its figure lies among the simple methods, and what bits per byte mean."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from minigpt.baselines.baselines import Baseline, recorded_baselines
from minigpt.storage.names import plain_source
from minigpt.storage.run_record import RunRecord
from minigpt.units import shown_loss

Line = Mapping[str, Any]
"""A line of log.jsonl."""

EXPLAINED = "docs/tutorials/first-model.md#4-read-the-loss"
BITS_PER_BYTE = 8  # of a file that is not compressed
_METHODS = {
    "bytes": ("byte frequencies", "how often each byte occurs"),
    "gzip": ("gzip", "repetitions in the held-out text"),
    "3-gram": ("3-gram table", "what followed the two bytes before"),
    "5-gram": ("5-gram table", "what followed the four bytes before"),
    "xz": ("xz", "repetitions in the training text"),
}
_ARTICLES = {"3-gram": "a ", "5-gram": "a "}


@dataclass(frozen=True)
class Method:
    """A method that a run is compared with: its names alone and in a sentence, what it uses, its bits per byte."""

    name: str
    in_sentence: str
    uses: str
    bits: float
    is_partial: bool = False


def compared_methods(record: RunRecord, evaluations: Sequence[Line]) -> list[Method]:
    """The recorded baselines, and for a fine-tuned run the model that it began with; the worst first.

    The `evaluations` are those of the log that can be compared with one another. They read a part of the held-out text,
    and a result all of it: the model before fine-tuning is above the result by as much as they say.
    """
    methods = [_method(baseline) for baseline in recorded_baselines(record)]
    measured = {line["step"]: line["bits_per_byte"] for line in evaluations if line.get("bits_per_byte") is not None}
    if record.base and 0 in measured:
        name = f"{plain_source(record.base)} before fine-tuning"
        bits, result = measured[0], record.result
        if result is not None and result.bits_per_byte is not None and result.reason != "diverged":
            bits += result.bits_per_byte - measured.get(result.best_step, bits)
        methods.append(Method(name, name, "the model that this run began with", bits))
    return sorted(methods, key=lambda method: -method.bits)


def _method(baseline: Baseline) -> Method:
    name, uses = _METHODS.get(baseline.name, (baseline.name, baseline.meaning))
    method = Method(name, _ARTICLES.get(baseline.name, "") + name, uses, baseline.bits_per_byte, baseline.is_partial)
    part = baseline.label.removeprefix(baseline.name).strip(" ()")  # trained on 66 kB
    return replace(method, uses=f"{uses}; only {part}") if part else method


def verdict(bits: float, methods: Sequence[Method]) -> str:
    """Where a figure lies among the methods, as a sentence; methods that saw only part of the text do not count."""
    compared = sorted((method for method in methods if not method.is_partial), key=lambda method: -method.bits)
    if not compared:
        return "Not compared: no simple method was measured on the whole text."
    beaten = [method for method in compared if bits < method.bits]
    if not beaten:
        return f"Not yet better than {compared[0].in_sentence}, the weakest method it is compared with."
    if len(beaten) == len(compared):
        others = f", the best of the {len(compared)} methods it is compared with" if len(compared) > 1 else ""
        return f"Better than {compared[-1].in_sentence}{others}."
    return f"Between {beaten[-1].in_sentence} and {compared[len(beaten)].in_sentence}."


def in_plain_words(record: RunRecord, evaluations: Sequence[Line], bits: float) -> list[str]:
    """The verdict on a run that ended at `bits`, what that figure means, and the page that explains it."""
    means = "its predictions would not compress such text"
    if bits < BITS_PER_BYTE:
        means = f"its predictions would compress such text to {bits / BITS_PER_BYTE:.0%} of its size"
    return [
        verdict(bits, compared_methods(record, evaluations)),
        f"{shown_loss(bits)} bits per byte: {means} ({EXPLAINED}).",
    ]
