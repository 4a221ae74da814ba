"""A plan with what was measured: the speed of this machine, the memory, the baselines, the loss to expect."""

from dataclasses import dataclass, field

from minigpt.autoplan.all_settings import all_settings
from minigpt.autoplan.expectation import ExpectedRange
from minigpt.autoplan.planned_settings import PlannedSettings
from minigpt.autoplan.shipped_start import ShippedStart
from minigpt.baselines.baselines import Baseline
from minigpt.distillation.planning import teacher_settings
from minigpt.lora.fine_tuning import trained_parameters
from minigpt.runs.plan import Plan, Row
from minigpt.units import count, duration, size


@dataclass(frozen=True, kw_only=True, repr=False)
class MeasuredPlan(Plan):
    """A plan made from a measurement of this machine."""

    settings: PlannedSettings
    shipped: ShippedStart | None = None
    baselines: tuple[Baseline, ...] = field(default=(), repr=False)

    @property
    def steps(self) -> int:
        """The number of optimizer steps that the run takes if it does not stop early and this machine does no more."""
        steps = super().steps
        return round(self.settings.steps) if steps is None else steps

    @property
    def tokens_per_second(self) -> float:
        """The speed of training as measured on this machine."""
        return self.tokens_per_step / self.settings.seconds_per_step

    @property
    def train_seconds(self) -> float:
        return self.settings.seconds

    @property
    def expected(self) -> ExpectedRange | None:
        """The bits per byte, `low` to `high`, that four of five runs end with; None where nothing can be said."""
        return self.settings.expected

    def rows(self) -> list[Row]:
        settings, training = self.settings, all_settings(self.training)
        dropout = f"{self.model.dropout:g}, token noise {training.token_noise:g}"
        device = f"{self.device}, {training.dtype}" + (f": {settings.why_dtype}" if settings.why_dtype else "")
        replaced: dict[str, Row] = {
            "dropout": ("dropout", dropout, "--dropout --token-noise"),
            "device": ("device", device, "--device --dtype"),
        }
        before: dict[str, list[Row]] = {
            "model": self._loss_rows(),
            "context": self._trained_rows(),
            "batch": [("", f"BPE-dropout {training.bpe_dropout:g}", "--bpe-dropout")],
            "schedule": self._vocabulary_rows(),
            "early stop": [("", self._other_lengths(), ""), *self._teacher_rows(), *self._speed_rows()],
        }
        rows: list[Row] = []
        for row in super().rows():
            rows += [*before.get(row[0], ()), replaced.get(row[0], row)]
        if self.expected is not None:
            expected = f"{self.expected} bits per byte after about {count(self.steps, 'step')}"
            rows += [("expected", expected, ""), ("", "the range of 4 of 5 runs on other texts", "")]
        if self.shipped is not None:
            rows.append(("" if self.expected else "expected", self.shipped.outcome(self.expected), "--from"))
        return rows

    def summary(self) -> dict[str, str]:
        rows, teacher = super().summary(), [f"; {what}" for _, what, _ in self._teacher_rows()]
        rows["text"] += "".join(f"; loss {what}" for _, what, _ in self._loss_rows())
        rows["time"] = f"{self._length()}; {self._other_lengths()}{''.join(teacher)}"
        if self.expected is not None:
            rows["expected"] = f"{self.expected} bits per byte, the range of 4 of 5 runs on other texts"
        rows["expected"] += f"; {self.shipped.outcome(self.expected)}" if self.shipped else ""
        return rows

    def _speed_rows(self) -> list[Row]:
        memory = f"about {size(self.settings.memory)}, PyTorch itself not counted"
        return [
            ("speed", f"{self.tokens_per_second:,.0f} tokens/s, measured on this machine", ""),
            ("memory", memory, "--micro-batch-size --checkpoint-activations"),
        ]

    def _trained_rows(self) -> list[Row]:
        """Which weights are trained, if not all of them."""
        training, n_trained = all_settings(self.training), trained_parameters(self.model, self.training)
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

    def _vocabulary_rows(self) -> list[Row]:
        """How embeddings are trained, if not as all weights, and the softmax's share of the vocabulary, if not all."""
        training, vocab_size, rows = all_settings(self.training), self.model.vocab_size, list[Row]()
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

    def _teacher_rows(self) -> list[Row]:
        teacher = self.settings.teacher
        if teacher is None:
            return []
        minutes = teacher_settings(self.training).minutes
        seconds = teacher.training_seconds if minutes is None else 60 * minutes
        what = f"trains a teacher for {duration(seconds)}, then the model that learns from it"
        return [("teacher", what, "--distill --distill-weight")]

    def _loss_rows(self) -> list[Row]:
        if not self.corpus.is_chat_log:
            return []
        but = "" if self.corpus.scores_all("all") else " without messages of weight 0"
        every = f"of all turns of the conversations{but}"
        return [("loss", self.training.scored_text or every, "--loss-on")]

    def _other_lengths(self) -> str:
        """The length in the units in which it was not given."""
        epochs = f"{self.settings.tokens_seen / len(self.corpus.train):.1f} epochs"
        if self.training.minutes:
            return f"about {count(self.steps, 'step')}, {epochs}"
        return count(self.steps, "step") if self.training.epochs else epochs
