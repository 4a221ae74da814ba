"""The plan of a new run, and the planner: it chooses what the user did not give, here by fixed rules."""

import time
from collections.abc import Generator
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import torch

from minigpt.config import GPTConfig, TrainConfig, preset_config
from minigpt.data.corpus import Corpus
from minigpt.edges import provided
from minigpt.errors import ConfigError
from minigpt.run_options import Request
from minigpt.storage.checkpoint import Checkpoint
from minigpt.storage.run_record import BaselineRecord, RunRecord
from minigpt.training.budget import planned_steps
from minigpt.training.events import Activity, Notice
from minigpt.units import count, size

FINE_TUNED = "fine-tuned"  # instead of a preset's name, if the model to fine-tune gives the shape
Row = tuple[str, str, str]
"""A line of a plan's table: what it is, its value, and the options that change it."""
_MINUTES = 5.0  # of training, unless the text is tiny
_TINY, _TINY_STEPS = 20_000, 300  # tokens of a text on which a model trains for so many steps
_SHORT_TEXT = 300_000  # bytes of text, from which on the preset is micro
_SHORT, _LONG = "nano", "micro"  # presets
_FINE_TUNING_CONTEXT, _FINE_TUNING_RATE = 256, 5e-5
_STEP_TOKENS = 1024  # in a batch
_PATIENCE = 5  # evaluations
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


@dataclass(frozen=True, kw_only=True, repr=False)
class Plan(Draft):
    """A planned run; nothing is written yet. `minigpt.fit(plan)` trains it.

    `preset`, `model` and `training` are its settings, every one chosen or given. `baselines` are the methods that the
    run is compared with, `notes` sentences for the user, `seconds` the time that measuring took, which a budget in
    minutes includes. `str(plan)` is the table of `minigpt train --plan`.
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
    def expected(self) -> tuple[float, float] | None:
        """The lowest and the highest bits per byte that four of five runs end with; None where nothing can be said."""
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

    def summary(self) -> dict[str, str]:
        """The plan in five lines."""
        corpus, name = self.corpus, self.corpus.tokenizer.name
        model = f"{self.preset}, {self.model.n_parameters:,} parameters; {name}, context {self.training.context_length}"
        return {
            "text": f"{size(corpus.train_bytes)}, and {size(corpus.validation_bytes)} held out to measure on",
            "model": model,
            "time": self._length(),
            "expected": "not known for such a run",
            "all settings": f"--plan; the run is saved in {self.directory}",
        }

    def __str__(self) -> str:
        rows = self.rows()
        first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
        lines = [f"{name:{first}}  {value:{second}}  {options}".rstrip() for name, value, options in rows]
        return "\n".join([str(self.directory), *lines, *self.notes])

    def __repr__(self) -> str:
        return f"Plan({self.directory}: {self.preset}, {self.model.n_parameters:,} parameters, {self._length()})"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def _length(self) -> str:
        training = self.training
        if training.minutes:
            return f"{_amount(training.minutes, 'minute')}, {_end_time(60 * training.minutes - self.seconds)}"
        length = _amount(training.epochs, "epoch") if training.epochs else count(training.steps or 0, "step")
        return length if self.train_seconds is None else f"{length}, {_end_time(self.train_seconds)}"


class Planner:
    """Chooses settings. An edge provides a subclass at the seam "planner", of which the last one plans."""

    def plan(self, draft: Draft) -> Generator[Activity | Notice, None, Plan]:
        """Chooses what the user did not give: a small preset, 5 minutes, batches of 1,024 tokens.

        Raises: ConfigError for options that cannot be combined or do not fit the text.
        """
        yield from ()
        options, base, n_tokens = draft.request.options, draft.base, len(draft.corpus.train)
        preset = options.preset or (_SHORT if draft.corpus.train_bytes < _SHORT_TEXT else _LONG)
        if base is None:
            model = preset_config(preset).replace(vocab_size=draft.corpus.tokenizer.vocab_size, **options.shape)
            context = min(options.training.context_length or model.n_positions, max(1, n_tokens - 1))
            model = model.replace(n_positions=context)
            model.check_positions()
            chosen: dict[str, Any] = {"optimizer": "muon"}
        else:
            model = base.model.config.replace(**options.shape)
            context = options.training.context_length or min(model.n_positions, _FINE_TUNING_CONTEXT)
            context = min(context, max(1, n_tokens - 1))
            if context > model.n_positions:
                raise ConfigError(f"context_length ({context}) must be at most the model's own ({model.n_positions})")
            chosen = {"optimizer": "adamw", "learning_rate": _FINE_TUNING_RATE}
        sequences = min(_STEP_TOKENS, n_tokens // 8) // context
        chosen |= {"batch_size": max(draft.processes, sequences, 1), "patience": _PATIENCE}
        if not {"steps", "epochs", "minutes"} & options.given:
            chosen |= {"steps": _TINY_STEPS} if n_tokens < _TINY else {"minutes": _MINUTES}
        chosen = {name: value for name, value in chosen.items() if name not in options.given}
        config = options.training.replace(**chosen | {"context_length": context})
        config.check_processes(draft.processes)
        return Plan(**vars(draft), preset=FINE_TUNED if base else preset, model=model, training=config)

    def baselines(self, record: RunRecord) -> tuple[BaselineRecord, ...]:  # noqa: ARG002
        """The results of simple methods that the evaluations of a run are compared with, the worst first."""
        return ()

    def suspects(self, record: RunRecord) -> str:  # noqa: ARG002
        """A sentence on the settings that can be why a run diverged; empty if there are none."""
        return ""


def planner() -> Planner:
    """The planner of the last edge that has one, else that of the spine."""
    chosen: type[Planner] = (Planner, *provided("planner"))[-1]
    return chosen()


def _amount(number: float, unit: str) -> str:
    """A number that need not be whole, and its unit: 1 minute, 0.5 minutes."""
    return f"{number:g} {unit}" if number == 1 else f"{number:g} {unit}s"


def _end_time(seconds: float) -> str:
    """The time at which a run of this many seconds will be done, with the date if that may be another day."""
    if seconds > _CENTURY:
        return "more than a hundred years"
    pattern = "%H:%M:%S" if seconds < 20 * 3600 else "%Y-%m-%d %H:%M"
    return time.strftime(f"done at {pattern}", time.localtime(time.time() + seconds))
