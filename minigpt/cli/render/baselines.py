"""Describes in text which baselines a training run beats and which it does not."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minigpt.autoplan.baselines import Baseline
    from minigpt.training.events import Finished


def unbeaten_baselines(baselines: "Sequence[Baseline]", log: Iterable[Mapping[str, Any]]) -> "list[Baseline]":
    """The baselines that no evaluation in a log beats, without partial ones, which are not comparable."""
    measured = [line["bits_per_byte"] for line in log if line.get("bits_per_byte") is not None]
    lowest = min(measured, default=math.inf)
    return [baseline for baseline in baselines if not baseline.is_partial and lowest >= baseline.bits_per_byte]


def targets_text(unbeaten: "Sequence[Baseline]", baselines: "Sequence[Baseline]") -> str | None:
    """The baselines to beat and the ones that are not comparable; None if there are none."""
    partial = [baseline for baseline in baselines if baseline.is_partial]
    lines = []
    if unbeaten:
        lines.append(f"baselines to beat, in bits per byte of the held-out text: {_values(unbeaten)}")
    if partial:
        lines.append(f"not comparable, because they saw only part of the text: {_values(partial)}")
    return "\n".join(lines) or None


def result_text(log: Iterable[Mapping[str, Any]], baselines: "Sequence[Baseline]", finished: "Finished") -> str | None:
    """Lists the baselines that a run's best weights beat, and since when, and the others; None without a comparison.

    The final evaluation decides, because it covers more of the held-out text than the evaluations in the log.
    """
    from minigpt.autoplan.baselines import beaten_since

    if finished.bits_per_byte is None:
        return None
    until_best = [line for line in log if line["step"] <= finished.best_step]
    compared = unbeaten_baselines(baselines, [line for line in until_best if line["step"] == 0])
    since = beaten_since(until_best, {baseline.label: baseline.bits_per_byte for baseline in compared})
    beaten, unbeaten = [], []
    for baseline in compared:
        if finished.bits_per_byte >= baseline.bits_per_byte:
            unbeaten.append(f"{baseline.label} ({baseline.bits_per_byte:.2f})")
        elif baseline.label in since:
            beaten.append(f"{baseline.label} (since step {since[baseline.label]:,})")
        else:
            beaten.append(f"{baseline.label} (at the end)")
    parts = [f"beats {_joined(beaten, 'and')}"] if beaten else []
    parts += [f"not yet {_joined(unbeaten, 'or')}"] if unbeaten else []
    return "; ".join(parts) or None


def _joined(names: Sequence[str], conjunction: str) -> str:
    return f" {conjunction} ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _values(baselines: "Sequence[Baseline]") -> str:
    return ", ".join(f"{baseline.label} {baseline.bits_per_byte:.2f}" for baseline in baselines)
