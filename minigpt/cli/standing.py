"""What a run's log comes to, in words: which simple methods it beats and since when, and what its samples copy."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from minigpt.cli.render.units import count

if TYPE_CHECKING:
    from minigpt.evaluation.baselines import Baseline
    from minigpt.training.events import Finished

_LAST_SAMPLES = 3  # that the summary speaks of


def to_beat(baselines: "Sequence[Baseline]", log: Iterable[Mapping[str, Any]]) -> "list[Baseline]":
    """Those that no evaluation in a log is below; what saw a part of the text only is never beaten, nor to be."""
    measured = [line["bits_per_byte"] for line in log if line.get("bits_per_byte") is not None]
    lowest = min(measured, default=math.inf)
    return [baseline for baseline in baselines if not baseline.is_partial and lowest >= baseline.bits_per_byte]


def challenge(unbeaten: "Sequence[Baseline]", baselines: "Sequence[Baseline]") -> str | None:
    """What a run has still to beat, and what it cannot be said to beat; None where there is neither."""
    partial = [baseline for baseline in baselines if baseline.is_partial]
    said = [f"to beat, in bits per byte of the held-out text: {_figures(unbeaten)}"] if unbeaten else []
    said += [f"of a part of the text, too little to compare with: {_figures(partial)}"] if partial else []
    return "\n".join(said) or None


def standing(log: Iterable[Mapping[str, Any]], baselines: "Sequence[Baseline]", finished: "Finished") -> str | None:
    """Which baselines a run's best weights end below and since when, and which not; None where there is nothing to say.

    The end is judged by its own figure, over all of the held-out text that there is time for; the log's are of a part.
    """
    from minigpt.evaluation.baselines import beaten_since

    if finished.bits_per_byte is None:
        return None
    until_best = [line for line in log if line["step"] <= finished.best_step]
    compared = to_beat(baselines, [line for line in until_best if line["step"] == 0])
    since = beaten_since(until_best, {baseline.label: baseline.bits_per_byte for baseline in compared})
    below, above = [], []
    for baseline in compared:
        if finished.bits_per_byte >= baseline.bits_per_byte:
            above.append(f"not than {baseline.label} ({baseline.bits_per_byte:.2f})")
        elif baseline.label in since:
            below.append(f"{baseline.label} since step {since[baseline.label]:,}")
        else:
            below.append(f"{baseline.label} in the end")
    return ", ".join(below + above) or None


def copied(log: Iterable[Mapping[str, Any]]) -> str | None:
    """What the last of a run's samples copy from its text, None where there are none or nothing is known of it."""
    last = [line for line in log if "copied_share" in line][-_LAST_SAMPLES:]
    if not last:
        return None
    share = sum(line["copied_share"] for line in last) / len(last)  # all are of one length, or nearly
    longest = max(line["longest_copied_words"] for line in last)
    which = f"last {len(last)} samples" if len(last) > 1 else "last sample"
    least = last[-1]["copied_at_least"]
    return f"{share:.0%} of the {which}, in runs of {least} words or more; longest {count(longest, 'word')}"


def _figures(baselines: "Sequence[Baseline]") -> str:
    return ", ".join(f"{baseline.label} {baseline.bits_per_byte:.2f}" for baseline in baselines)
