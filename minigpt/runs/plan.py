"""The plan of a run: its text, its settings as chosen and given, and the table that shows them."""

import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

from minigpt.autoplan.baselines import Baseline
from minigpt.autoplan.expectation import ExpectedRange
from minigpt.autoplan.plan_settings import FINE_TUNED
from minigpt.autoplan.planned_settings import PlannedSettings
from minigpt.config import GPTConfig, TrainConfig
from minigpt.data.corpus import Corpus
from minigpt.distillation.planning import teacher_settings
from minigpt.lora.fine_tuning import trained_parameters
from minigpt.runs.request import Request
from minigpt.storage.checkpoint import Checkpoint
from minigpt.training.budget import planned_steps
from minigpt.units import count, duration, size

_CENTURY = 100 * 365.25 * 24 * 3600  # seconds; many systems cannot represent a later time


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A planned run; nothing is written yet. `minigpt.fit(plan)` trains it.

    `directory` is the run's future folder, `base` the model to fine-tune, `baselines` the methods that the run is
    compared with, `notes` sentences for the user, `seconds` the time that measuring took, which a budget in minutes
    includes. `str(plan)` is the table of `minigpt train --plan`.
    """

    request: Request
    directory: Path
    corpus: Corpus = field(repr=False)
    settings: PlannedSettings
    base: Checkpoint | None = field(repr=False)
    baselines: tuple[Baseline, ...] = field(repr=False)
    device: torch.device
    notes: tuple[str, ...]
    seconds: float

    @property
    def model(self) -> GPTConfig:
        return self.settings.model

    @property
    def training(self) -> TrainConfig:
        """The training settings, every one of them chosen or given."""
        return self.settings.training

    @property
    def steps(self) -> int:
        """The number of optimizer steps that the run takes if it does not stop early and this machine does no more."""
        steps = planned_steps(self.training, len(self.corpus.train))
        return round(self.settings.steps) if steps is None else steps

    @property
    def tokens_per_second(self) -> float:
        """The speed of training as measured on this machine."""
        return self.settings.tokens_per_step / self.settings.seconds_per_step

    @property
    def expected(self) -> ExpectedRange | None:
        """The bits per byte, `low` to `high`, that four of five runs end with; None where nothing can be said."""
        return self.settings.expected

    def rows(self) -> list[tuple[str, str, str]]:
        """The table of the plan: in each line what it is, its value, and the options that change it."""
        corpus, settings, model, training = self.corpus, self.settings, self.model, self.training
        held_out, patience = "nothing held out, so it cannot stop early", 0
        if len(corpus.validation) > 1:
            patience = training.patience or 0
            held_out = f"{size(corpus.validation_bytes)} held out for validation ({corpus.held_out})"
        fine_tuned = settings.preset == FINE_TUNED  # the model to fine-tune has a tokenizer and a shape
        tokens = f"{len(corpus.train):,}, {corpus.train_bytes / len(corpus.train):.2f} bytes of text each"
        layers = f"{count(model.n_layer, 'layer')}, {count(model.n_head, 'head')}, width {model.n_embd}"
        batch = f"{count(training.sequences_per_step, 'sequence')}, {settings.tokens_per_step:,} tokens per step"
        early = f"after {count(patience, 'evaluation')} without improvement" if patience else "never"
        memory = f"about {size(settings.memory)}, PyTorch itself not counted"
        learning = f"{training.optimizer}, learning rate {training.learning_rate:g}"
        tokenizer = f"{corpus.tokenizer.name}, {corpus.tokenizer.vocab_size:,} tokens"
        device = f"{self.device}, {training.dtype}" + (f": {settings.why_dtype}" if settings.why_dtype else "")
        rows = [
            ("text", f"{size(corpus.train_bytes)}, {held_out}", "--validation-fraction"),
            ("tokenizer", tokenizer, "" if fine_tuned else "--tokenizer"),
            ("tokens", tokens, ""),
            *self._loss_rows(),
            ("model", f"{settings.preset}, {model.n_parameters:,} parameters", "--from" if fine_tuned else "--preset"),
            ("", layers, "" if fine_tuned else "--n-layer --n-head --n-embd"),
            *self._trained_rows(),
            ("context", f"{training.context_length} tokens", "--context-length"),
            ("dropout", f"{model.dropout:g}, token noise {training.token_noise:g}", "--dropout --token-noise"),
            ("", f"BPE-dropout {training.bpe_dropout:g}", "--bpe-dropout"),
            ("batch", batch, "--batch-tokens" if training.batch_tokens else "--batch-size"),
            ("optimizer", learning, "--optimizer --learning-rate"),
            *self._vocabulary_rows(),
            ("schedule", training.schedule, "--schedule --cooldown"),
            ("length", self._length(), "--minutes --steps --epochs"),
            ("", self._other_lengths(), ""),
            *self._teacher_rows(),
            ("speed", f"{self.tokens_per_second:,.0f} tokens/s, measured on this machine", ""),
            ("memory", memory, "--micro-batch-size --checkpoint-activations"),
            ("early stop", early, "--patience"),
            ("device", device, "--device --dtype"),
            ("seed", str(training.seed), "--seed"),
        ]
        if self.expected is not None:
            expected = f"{self.expected} bits per byte after about {count(self.steps, 'step')}"
            rows += [("expected", expected, ""), ("", "the range of 4 of 5 runs on other texts", "")]
        return rows

    def __str__(self) -> str:
        rows = self.rows()
        first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
        lines = [f"{name:{first}}  {value:{second}}  {options}".rstrip() for name, value, options in rows]
        return "\n".join([str(self.directory), *lines, *self.notes])

    def _trained_rows(self) -> list[tuple[str, str, str]]:
        """Which weights are trained, if not all of them."""
        training, n_trained = self.training, trained_parameters(self.model, self.training)
        if training.lora:
            embedding = " and the token embedding" if training.lora_embedding else ""
            what = f"an adapter (LoRA) of rank {training.lora_rank}{embedding}, {n_trained:,} parameters"
            if training.base_dtype != "float32":
                what += f"; the base model in {training.base_dtype}"
            options = "--lora-rank --lora-alpha --lora-targets --lora-embedding --base-dtype --no-lora"
            return [("trained", what, options)]
        if training.freeze:
            what = f"{n_trained:,} parameters; {count(training.freeze, 'lower block')} and the embeddings are frozen"
            return [("trained", what, "--freeze")]
        return []

    def _vocabulary_rows(self) -> list[tuple[str, str, str]]:
        """How embeddings are trained, if not as all weights, and the softmax's share of the vocabulary, if not all."""
        training, vocab_size, rows = self.training, self.model.vocab_size, []
        if training.embedding_weight_decay not in (None, training.weight_decay):
            what = f"weight decay {training.embedding_weight_decay:g}"
            rows.append(("embeddings", what, "--embedding-weight-decay"))
        if training.spelling_features:
            what = "tokens of like spelling share updates"
            rows.append(("" if rows else "embeddings", what, "--no-spelling-features"))
        if training.samples_vocabulary(vocab_size):
            what = f"about {training.sampled_softmax:,} of {vocab_size:,} tokens, sampled in each training step"
            rows.append(("softmax", what, "--sampled-softmax"))
        return rows

    def _teacher_rows(self) -> list[tuple[str, str, str]]:
        teacher = self.settings.teacher
        if teacher is None:
            return []
        minutes = teacher_settings(self.training).minutes
        seconds = teacher.training_seconds if minutes is None else 60 * minutes
        what = f"trains a teacher for {duration(seconds)}, then the model that learns from it"
        return [("teacher", what, "--distill --distill-weight")]

    def _loss_rows(self) -> list[tuple[str, str, str]]:
        if not self.corpus.is_chat_log:
            return []
        but = "" if self.corpus.scores_all("all") else " without messages of weight 0"
        every = f"of all turns of the conversations{but}"
        return [("loss", self.training.scored_text or every, "--loss-on")]

    def _length(self) -> str:
        training = self.training
        if training.minutes:
            return f"{_amount(training.minutes, 'minute')}, {_end_time(60 * training.minutes - self.seconds)}"
        length = _amount(training.epochs, "epoch") if training.epochs else count(training.steps or 0, "step")
        return f"{length}, {_end_time(self.settings.seconds)}"

    def _other_lengths(self) -> str:
        """The length in the units in which it was not given."""
        epochs = f"{self.settings.tokens_seen / len(self.corpus.train):.1f} epochs"
        if self.training.minutes:
            return f"about {count(self.steps, 'step')}, {epochs}"
        return count(self.steps, "step") if self.training.epochs else epochs


def _amount(number: float, unit: str) -> str:
    """A number that need not be whole, and its unit: 1 minute, 0.5 minutes."""
    return f"{number:g} {unit}" if number == 1 else f"{number:g} {unit}s"


def _end_time(seconds: float) -> str:
    """The time at which a run of this many seconds will be done, with the date if that may be another day."""
    if seconds > _CENTURY:
        return "more than a hundred years"
    pattern = "%H:%M:%S" if seconds < 20 * 3600 else "%Y-%m-%d %H:%M"
    return time.strftime(f"done at {pattern}", time.localtime(time.time() + seconds))
