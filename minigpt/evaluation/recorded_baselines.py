"""The simple methods that a run is compared with, from its record; it measures none, and reads no log."""

from collections.abc import Mapping
from typing import Any

from minigpt.evaluation.baselines import Baseline


def recorded_baselines(record: Mapping[str, Any]) -> list[Baseline]:
    """Those in a run's training.json, the worst first; none where it has none, or has another text by now.

    Runs of earlier versions did not record how much there is of each part, which their corpus knows.
    """
    kept, corpus = record.get("baselines"), record["corpus"]
    if kept is None or kept["fingerprint"] != corpus["fingerprint"]:
        return []
    whole = {f"whole_{part}_bytes": corpus.get(f"{part}_bytes", 0) for part in ("train", "validation")}
    found = [Baseline(**(whole | entry)) for entry in kept["measured"]]
    return sorted(found, key=lambda baseline: -baseline.bits_per_byte)
