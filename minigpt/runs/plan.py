"""The plan of a run: its text, its settings as chosen and given, and the table that shows them."""

import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

from minigpt.config import GPTConfig, TrainConfig
from minigpt.data.corpus import Corpus
from minigpt.runs.events import ExpectedRange
from minigpt.runs.request import Request
from minigpt.storage.checkpoint import Checkpoint
from minigpt.storage.run_record import BaselineRecord
from minigpt.training.budget import planned_steps
from minigpt.units import count, size

FINE_TUNED = "fine-tuned"  # instead of a preset's name, if the model to fine-tune gives the shape
Row = tuple[str, str, str]
"""A line of a plan's table: what it is, its value, and the options that change it."""
_CENTURY = 100 * 365.25 * 24 * 3600  # seconds; many systems cannot represent a later time


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A new run whose settings are not chosen yet.

    `directory` is the run's future folder, `base` the model to fine-tune. Of the `processes` that will train,
    `local_processes` are on this machine.
    """

    request: Request
    directory: Path
    corpus: Corpus = field(repr=False)
    base: Checkpoint | None = field(repr=False)
    device: torch.device
    processes: int = 1
    local_processes: int = 1


@dataclass(frozen=True, kw_only=True)
class Plan(Draft):
    """A planned run; nothing is written yet. `minigpt.fit(plan)` trains it.

    `preset`, `model` and `training` are its settings, every one chosen or given. `baselines` are the methods that the
    run is compared with, `notes` sentences for the user, `seconds` the time that measuring took, which a budget in
    minutes includes. `str(plan)` is the table of
    `minigpt train --plan`.
    """

    preset: str
    model: GPTConfig
    training: TrainConfig
    baselines: tuple[BaselineRecord, ...] = field(default=(), repr=False)
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def tokens_per_step(self) -> int:
        return self.training.sequences_per_step * (self.training.context_length or 0)

    @property
    def steps(self) -> int | None:
        """The number of optimizer steps that the run takes if it does not stop early; None if that is not known."""
        return planned_steps(self.training, len(self.corpus.train))

    @property
    def train_seconds(self) -> float | None:
        """The seconds of all steps; None if that is not known."""
        return None

    @property
    def tokens_per_second(self) -> float | None:
        """The speed of training as measured on this machine; None if it was not measured."""
        return None

    @property
    def expected(self) -> ExpectedRange | None:
        """The bits per byte, `low` to `high`, that four of five runs end with; None where nothing can be said."""
        return None

    def rows(self) -> list[Row]:
        """The table of the plan."""
        corpus, model, training = self.corpus, self.model, self.training
        held_out, patience = "nothing held out, so it cannot stop early", 0
        if len(corpus.validation) > 1:
            patience = training.patience or 0
            held_out = f"{size(corpus.validation_bytes)} held out for validation ({corpus.held_out})"
        fine_tuned = self.preset == FINE_TUNED  # the model to fine-tune has a tokenizer and a shape
        tokens = f"{len(corpus.train):,}, {corpus.train_bytes / len(corpus.train):.2f} bytes of text each"
        layers = f"{count(model.n_layer, 'layer')}, {count(model.n_head, 'head')}, width {model.n_embd}"
        batch = f"{count(training.sequences_per_step, 'sequence')}, {self.tokens_per_step:,} tokens per step"
        early = f"after {count(patience, 'evaluation')} without improvement" if patience else "never"
        learning = f"{training.optimizer}, learning rate {training.learning_rate:g}"
        tokenizer = f"{corpus.tokenizer.name}, {corpus.tokenizer.vocab_size:,} tokens"
        return [
            ("text", f"{size(corpus.train_bytes)}, {held_out}", "--validation-fraction"),
            ("tokenizer", tokenizer, "" if fine_tuned else "--tokenizer"),
            ("tokens", tokens, ""),
            ("model", f"{self.preset}, {model.n_parameters:,} parameters", "--from" if fine_tuned else "--preset"),
            ("", layers, "" if fine_tuned else "--n-layer --n-head --n-embd"),
            ("context", f"{training.context_length} tokens", "--context-length"),
            ("dropout", f"{model.dropout:g}", "--dropout"),
            ("batch", batch, "--batch-tokens" if training.batch_tokens else "--batch-size"),
            ("optimizer", learning, "--optimizer --learning-rate"),
            ("schedule", training.schedule, "--schedule --cooldown"),
            ("length", self._length(), "--minutes --steps --epochs"),
            ("early stop", early, "--patience"),
            ("device", f"{self.device}, {training.dtype}", "--device --dtype"),
            ("seed", str(training.seed), "--seed"),
        ]

    def __str__(self) -> str:
        rows = self.rows()
        first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
        lines = [f"{name:{first}}  {value:{second}}  {options}".rstrip() for name, value, options in rows]
        return "\n".join([str(self.directory), *lines, *self.notes])

    def _length(self) -> str:
        training = self.training
        if training.minutes:
            return f"{_amount(training.minutes, 'minute')}, {_end_time(60 * training.minutes - self.seconds)}"
        length = _amount(training.epochs, "epoch") if training.epochs else count(training.steps or 0, "step")
        return length if self.train_seconds is None else f"{length}, {_end_time(self.train_seconds)}"


def _amount(number: float, unit: str) -> str:
    """A number that need not be whole, and its unit: 1 minute, 0.5 minutes."""
    return f"{number:g} {unit}" if number == 1 else f"{number:g} {unit}s"


def _end_time(seconds: float) -> str:
    """The time at which a run of this many seconds will be done, with the date if that may be another day."""
    if seconds > _CENTURY:
        return "more than a hundred years"
    pattern = "%H:%M:%S" if seconds < 20 * 3600 else "%Y-%m-%d %H:%M"
    return time.strftime(f"done at {pattern}", time.localtime(time.time() + seconds))
