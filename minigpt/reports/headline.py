"""The first part of a report: how good the model is, compared with simple methods, and what it is, in a few lines."""

from collections.abc import Sequence
from typing import Any

from minigpt.baselines.verdict import BITS_PER_BYTE, Line, compared_methods, verdict
from minigpt.reports.recorded_steps import recorded_steps
from minigpt.storage.names import plain_source
from minigpt.storage.run_record import RunRecord
from minigpt.units import count, size

_FINE_TUNED = "fine-tuned"  # the record has this word where other runs have the name of their preset


def headline(record: RunRecord, evaluations: Sequence[Line], last_step: Line | None) -> dict[str, Any]:
    """The data of the headline. Without a result, the best evaluation so far and the last logged step count."""
    result, evaluations = record.result, record.comparable_evaluations(evaluations)
    measured = [line["bits_per_byte"] for line in evaluations if line.get("bits_per_byte") is not None]
    bits = None if result is None else result.bits_per_byte
    if result is None or result.reason == "diverged":
        bits = min(measured, default=None)
    methods = compared_methods(record, evaluations)
    return {
        "bits": None if bits is None else round(bits, 4),
        "verdict": "" if bits is None else verdict(bits, methods),
        "meaning": _meaning(bits, record),
        "methods": [
            {"name": each.name, "uses": each.uses, "bits": round(each.bits, 4), "isPartial": each.is_partial}
            for each in methods
        ],
        "facts": [
            fact for fact in (_model(record), _text(record), _training(record, last_step), _machine(record)) if fact
        ],
        "plan": _plan(record),
        "nextSteps": recorded_steps(record),
    }


def _meaning(bits: float | None, record: RunRecord) -> str:
    if bits is None and record.result is None and record.corpus is not None and record.corpus.validation_bytes:
        return "The first evaluation on held-out text has not ended."
    if bits is None:
        return "No held-out text was measured, so nothing says how well the model predicts new text."
    scored = record.training.scored_text if record.training else ""  # "of the assistant's turns only"
    measured = "On text that it was not trained on" + scored.replace("of ", ", in ", 1)
    if bits >= BITS_PER_BYTE:
        return f"{measured}. A file takes 8 bits for each byte; this model predicts no better."
    share = bits / BITS_PER_BYTE
    return (
        f"{measured}; lower is better. A file takes 8 bits for each byte, so these predictions "
        f"would compress the text to {share:.0%} of its size."
    )


def _model(record: RunRecord) -> list[str] | None:
    model = record.model
    if model is None:
        return None
    shape = f"{count(model.n_layer, 'layer')} of width {model.n_embd}, {count(model.n_head, 'attention head')}"
    return ["Model", f"{_rounded_count(model.n_parameters)} parameters", shape]


def _text(record: RunRecord) -> list[str] | None:
    corpus = record.corpus
    if corpus is None:
        return None
    held_out = corpus.validation_bytes or 0
    whole = corpus.train_bytes + held_out
    parts = [plain_source(source) for source in record.sources]
    names = ", ".join(parts[:2]) + (f" and {len(parts) - 2} more" if len(parts) > 2 else "")
    part = "nothing"
    if held_out:
        part = f"{held_out / whole:.0%}" if held_out >= 0.01 * whole else _rounded_size(held_out)
    return ["Text", _rounded_size(whole), "; ".join(filter(None, [names, f"{part} held out"]))]


def _training(record: RunRecord, last_step: Line | None) -> list[str] | None:
    result, line = record.result, last_step or {}
    seconds = result.seconds if result is not None else line.get("seconds")
    steps = result.step if result is not None else line.get("step")
    if steps is None:
        return None
    tokens = line.get("tokens")
    seen = "" if tokens is None else f", {_rounded_count(tokens)} tokens"
    return [
        "Training time",
        "not recorded" if seconds is None else spoken_duration(seconds),
        f"{count(steps, 'step')}{seen}",
    ]


def _machine(record: RunRecord) -> list[str] | None:
    environment = record.environment
    if environment is None:
        return None
    device = environment.gpu or environment.cpu
    if device is None:
        return None
    cores = "" if environment.gpu or not environment.cores else count(environment.cores, "core")
    return ["Machine", "GPU" if environment.gpu else "CPU", ", ".join(filter(None, [device, cores]))]


def _plan(record: RunRecord) -> str:
    """The plan in one line."""
    model, training = record.model, record.training
    if model is None or training is None:
        return ""
    parts = [f"fine-tune {plain_source(record.base)}" if record.base else f"train a new model ({record.preset})"]
    if record.base is None and record.preset in (None, _FINE_TUNED):
        parts = ["train a new model"]
    parts.append(_length(training.minutes, training.epochs, training.steps))
    if record.tokenizer:
        parts.append(f"{model.vocab_size:,} tokens in the vocabulary ({record.tokenizer})")
    if training.context_length is not None:
        batch = f"{training.sequences_per_step} × {training.context_length} tokens per step"
        parts.append(batch)
    optimizer = {"muon": "Muon", "adamw": "AdamW"}[training.optimizer]
    parts.append(f"{optimizer} with learning rate {training.learning_rate:g}")
    if record.expected is not None:
        low, high = record.expected
        parts.append(f"expected {low:.2f} to {high:.2f} bits per byte")
    return "; ".join(filter(None, parts)) + "."


def _length(minutes: float | None, epochs: float | None, steps: int | None) -> str:
    if minutes is not None:
        return f"{minutes:g} minute{'' if minutes == 1 else 's'}"
    if epochs is not None:
        return f"{epochs:g} pass{'' if epochs == 1 else 'es'} over the text"
    return "" if steps is None else count(steps, "step")


def spoken_duration(seconds: float) -> str:
    """A duration with units: 45 s, 2 min 5 s, 3 h 20 min."""
    total = round(seconds)
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min {total % 60} s" if total % 60 else f"{total // 60} min"
    return f"{total // 3600} h {total // 60 % 60} min"


def _rounded_size(n_bytes: int) -> str:
    return size(n_bytes).replace(".0 ", " ")


def _rounded_count(number: int) -> str:
    """A number to three digits: 3.24 million; in full below a million."""
    for least, factor, unit in ((999.5e6, 1e9, " billion"), (1e6, 1e6, " million")):
        if number >= least:
            return f"{number / factor:.3g}{unit}"
    return f"{number:,}"
