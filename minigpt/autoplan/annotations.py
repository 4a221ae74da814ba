"""What the display of a run says of baselines, speed and next steps."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from minigpt.autoplan.all_settings import all_settings
from minigpt.autoplan.next_steps import next_steps
from minigpt.autoplan.throughput import Peak, peak
from minigpt.baselines.baselines import Baseline, beaten_since
from minigpt.baselines.verdict import in_plain_words
from minigpt.cli.render.annotations import Annotations, NextStep, Result
from minigpt.device import resolve_device, resolve_dtype
from minigpt.lora.fine_tuning import flops_per_token
from minigpt.runs.events import Started
from minigpt.runs.job import Job
from minigpt.training.events import Evaluation, Finished
from minigpt.units import shown_loss


class PlanAnnotations(Annotations):
    """Compares a run with its baselines and with this machine's peak, and proposes next steps."""

    def __init__(self, started: Started) -> None:
        super().__init__(started)
        self.baselines = [Baseline(**vars(each)) for each in started.baselines]
        self.unbeaten: Sequence[Baseline] | None = None  # until the first evaluation

    def resumed(self, evaluations: Sequence[Mapping[str, Any]]) -> str:
        self.unbeaten = unbeaten_baselines(self.baselines, evaluations)
        return targets_text(self.unbeaten, self.baselines) or ""

    def evaluated(self, event: Evaluation) -> tuple[str, str]:
        log = [{"step": event.step, "bits_per_byte": event.bits_per_byte}]
        if self.unbeaten is None:
            return "", self.resumed(log)
        still = unbeaten_baselines(self.unbeaten, log)
        beaten = [baseline.label for baseline in self.unbeaten if baseline not in still]
        self.unbeaten = still
        return f"now beats {', '.join(beaten)}" if beaten else "", ""

    def result_rows(self, result: Result) -> Mapping[str, str]:
        rows, run, speed = {}, result.job.run, result.tokens_per_second
        if speed is not None:
            rows["speed"] = f"{speed:,.0f} tokens/s, {self._of_peak(result.job, speed, result.processes)}"
        log = list(run.read_log())
        if beaten := result_text(run.record.comparable_evaluations(log), self.baselines, result.finished):
            rows["baselines"] = beaten
        return rows

    def verdict(self, result: Result) -> Iterable[str]:
        bits, run = result.finished.bits_per_byte, result.job.run
        if bits is None or result.finished.reason == "diverged":
            return ()
        return in_plain_words(run.record, run.record.comparable_evaluations(run.read_log()), bits)

    def next_steps(self, job: Job) -> Iterable[NextStep]:
        return next_steps(job)

    def _of_peak(self, job: Job, tokens_per_second: float, processes: int) -> str:
        device = resolve_device(self.started.device)
        most = peak(device, resolve_dtype(job.config.dtype, device))
        if processes > 1:  # on a CPU each has its part of the cores
            most = Peak(processes * most.flops, f"{processes} times {most.source}")
        per_token = float(flops_per_token(job.model.config, job.config))
        if all_settings(job.config).distill == "on":
            per_token *= 4 / 3  # the teacher's forward pass
        return f"{tokens_per_second * per_token / most.flops:.0%} of this machine's peak ({most.source})"


def unbeaten_baselines(baselines: Sequence[Baseline], log: Iterable[Mapping[str, Any]]) -> list[Baseline]:
    """The baselines that no evaluation in a log beats, without partial ones, which are not comparable."""
    measured = [line["bits_per_byte"] for line in log if line.get("bits_per_byte") is not None]
    lowest = min(measured, default=math.inf)
    return [baseline for baseline in baselines if not baseline.is_partial and lowest >= baseline.bits_per_byte]


def targets_text(unbeaten: Sequence[Baseline], baselines: Sequence[Baseline]) -> str | None:
    """The baselines to beat and the ones that are not comparable; None if there are none."""
    partial = [baseline for baseline in baselines if baseline.is_partial]
    lines = []
    if unbeaten:
        lines.append(f"baselines to beat, in bits per byte of the held-out text: {_values(unbeaten)}")
    if partial:
        lines.append(f"not comparable, because they saw only part of the text: {_values(partial)}")
    return "\n".join(lines) or None


def result_text(log: Iterable[Mapping[str, Any]], baselines: Sequence[Baseline], finished: Finished) -> str | None:
    """Lists the baselines that a run's best weights beat, and since when, and the others; None without a comparison.

    The final evaluation decides, because it covers more of the held-out text than the evaluations in the log.
    """
    if finished.bits_per_byte is None:
        return None
    until_best = [line for line in log if line["step"] <= finished.best_step]
    compared = unbeaten_baselines(baselines, [line for line in until_best if line["step"] == 0])
    since = beaten_since(until_best, {baseline.label: baseline.bits_per_byte for baseline in compared})
    beaten, unbeaten = [], []
    for baseline in compared:
        if finished.bits_per_byte >= baseline.bits_per_byte:
            unbeaten.append(f"{baseline.label} ({shown_loss(baseline.bits_per_byte)})")
        elif baseline.label in since:
            beaten.append(f"{baseline.label} (since step {since[baseline.label]:,})")
        else:
            beaten.append(f"{baseline.label} (at the end)")
    parts = [f"beats {_joined(beaten, 'and')}"] if beaten else []
    parts += [f"not yet {_joined(unbeaten, 'or')}"] if unbeaten else []
    return "; ".join(parts) or None


def _joined(names: Sequence[str], conjunction: str) -> str:
    return f" {conjunction} ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _values(baselines: Sequence[Baseline]) -> str:
    return ", ".join(f"{baseline.label} {shown_loss(baseline.bits_per_byte)}" for baseline in baselines)
