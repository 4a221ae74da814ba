"""Compares what the plan expects with what runs reach: bits per byte, and steps in real time.

    python benchmarks/forecast.py --texts a.txt b.txt --minutes 1 2 --speeds 0.5 1 --seed 2 --json results.jsonl
    python benchmarks/forecast.py --texts a.txt b.txt --minutes 0.5 1 --real --json real.jsonl

Without --real, each run is planned for a machine of that speed, as in scaling.py, and trained in as many steps, however
long that takes; so other programs do not matter. With --real, each run is `minigpt train --minutes` on this machine,
which must be quiet; then the steps are compared too. Give texts that are not in minigpt/autoplan/scaling.jsonl. Both
append to the file of --json and print a table of all its rows.
"""

import argparse
import itertools
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from scaling import experiment, planned


def expected_of(row: dict[str, Any]) -> list[float] | None:
    """The range that the plan prints for this experiment."""
    from minigpt.autoplan.corpus_stats import CorpusStats
    from minigpt.autoplan.expectation import expected_range
    from minigpt.config import GPTConfig

    n_tokens = round(row["train_bytes"] / row["bytes_per_token"])
    stats = CorpusStats(n_tokens, row["train_bytes"], row["vocabulary"], row["entropy"])
    model = GPTConfig(n_layer=row["layers"], n_embd=row["width"], n_head=1)
    found = expected_range(model, row["tokens"], stats, sampled=bool(row.get("sampled_softmax")))
    return None if found is None else [found.low, found.high]


def invented(path: Path, minutes: float, speed: float, seed: int) -> dict[str, Any]:
    """A run in the steps that a machine of this speed takes."""
    row = experiment(planned(path, minutes, speed, seed))
    return {
        "text": path.name, "minutes": minutes, "speed": speed, "seed": seed, "model": row["shape"],
        "planned_steps": row["steps"], "steps": row["steps_taken"], "expected": expected_of(row),
        "bits_per_byte": row["bits_per_byte"],
    }  # fmt: skip


def real(path: Path, minutes: float, seed: int) -> dict[str, Any]:
    """A run of so many minutes on this machine."""
    import minigpt
    from minigpt.autoplan.measured_plan import MeasuredPlan
    from minigpt.autoplan.speed_monitor import SpeedChange
    from minigpt.runs.events import Planned, Started
    from minigpt.training.events import Step

    began, changes, in_steps, step = time.perf_counter(), [], 0.0, None
    with tempfile.TemporaryDirectory() as folder:
        for event in minigpt.fit(path, checkpoints=folder, minutes=minutes, seed=seed, report=False):
            if isinstance(event, Planned):
                assert isinstance(event.plan, MeasuredPlan)
                plan: MeasuredPlan = event.plan
            elif isinstance(event, Started):
                preparing = time.perf_counter() - began
            elif isinstance(event, SpeedChange):
                changes.append(event.text)
            elif isinstance(event, Step):
                in_steps += plan.settings.tokens_per_step / event.tokens_per_second
                step = event.step
            last = event
    assert isinstance(last, minigpt.Finished)
    return {
        "text": path.name, "minutes": minutes, "speed": "this machine", "seed": seed, "model": plan.settings.preset,
        "planned_steps": plan.steps, "steps": step, "reason": last.reason,
        "expected": plan.expected and [plan.expected.low, plan.expected.high], "bits_per_byte": last.bits_per_byte,
        "planned_seconds_per_step": plan.settings.seconds_per_step, "seconds_per_step": in_steps / (step or 1),
        "planned_training": plan.settings.training_seconds, "training": in_steps, "preparing": preparing,
        "seconds": last.seconds, "changes": changes,
    }  # fmt: skip


def table(rows: list[dict[str, Any]]) -> str:
    """All rows as Markdown, and how many are as expected."""
    lines = [
        "| text | minutes | machine | model | steps, expected | steps | bits per byte, expected | bits per byte | |"
    ]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    inside = 0
    for row in rows:
        expected, found = row["expected"], row["bits_per_byte"]
        if expected is None:
            shown, verdict = "nothing", ""
        else:
            is_inside = expected[0] <= found <= expected[1]
            shown, verdict = f"{expected[0]:.2f}–{expected[1]:.2f}", "" if is_inside else "outside"
            inside += is_inside
        lines.append(
            f"| {row['text']} | {row['minutes']:g} | {row['speed']} | {row['model']} | {row['planned_steps']:,} | "
            f"{row['steps']:,} | {shown} | {found:.2f} | {verdict} |"
        )
    said = sum(row["expected"] is not None for row in rows)
    return "\n".join([*lines, "", f"{inside} of {said} inside the expected range"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", nargs="*", type=Path, default=[], help="text files or folders")
    parser.add_argument("--minutes", nargs="+", type=float, default=[1.0])
    parser.add_argument("--speeds", nargs="+", type=float, default=[1.0], help="1 is one core of a Xeon with AMX")
    parser.add_argument("--real", action="store_true", help="train for so many minutes on this machine")
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--json", type=Path, required=True, help="file to which a line for each run is appended")
    options = parser.parse_args()
    for path, minutes in itertools.product(options.texts, options.minutes):
        for speed in [None] if options.real else options.speeds:
            text, seed = path.resolve(), options.seed
            row = real(text, minutes, seed) if speed is None else invented(text, minutes, speed, seed)
            with options.json.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row), file=sys.stderr, flush=True)
    print(table([json.loads(line) for line in options.json.read_text().splitlines()]))


if __name__ == "__main__":
    main()
