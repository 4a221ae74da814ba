"""What a run does besides training steps, and how much of a budget in minutes it leaves for them."""

from dataclasses import dataclass

from minigpt.autoplan.memory_estimates import state_bytes
from minigpt.autoplan.throughput import evaluation_seconds
from minigpt.config import GPTConfig, TrainConfig
from minigpt.data.corpus import Corpus
from minigpt.lora.fine_tuning import trained_parameters
from minigpt.memorization.monitor import INDEX_SPEED, bytes_to_index
from minigpt.model.gpt import GPT
from minigpt.training.budget import EVALUATIONS, SAMPLES, training_between
from minigpt.training.evaluation import MAX_FINAL_FRACTION

STARTING = 0.3  # seconds for building the model and its folder
_SAVING = 0.05  # seconds for a file, in addition to writing its bytes
_WRITTEN = 400e6  # bytes per second, to the disk itself
_SAMPLE = 0.1  # seconds, with the model of 1.3 million parameters


@dataclass(frozen=True, kw_only=True)
class Overheads:
    """The parts of a run that are not training steps. Unit: seconds.

    `start` is everything before the first evaluation. `evaluation` is one evaluation during the run, `saving` what is
    saved with it, `sample` one sample, `index` the indexing of the text that samples are compared with, and `final` the
    last evaluation.
    """

    start: float
    evaluation: float
    saving: float
    sample: float
    index: float
    final: float

    @classmethod
    def measured(
        cls,
        model: GPTConfig,
        config: TrainConfig,
        corpus: Corpus,
        device_type: str,
        step: float,
        planning: float,
        base: GPT | None = None,
    ) -> "Overheads":
        """The overheads of a run whose steps take `step` seconds and whose planning took `planning` seconds.

        On a CPU, evaluating is measured, with the `base` if one is fine-tuned; elsewhere it is estimated as a third of
        the time of training.
        """
        tokens_per_step = config.sequences_per_step * (config.context_length or model.n_positions)
        per_token = step / tokens_per_step / 3
        if device_type == "cpu":
            per_token = evaluation_seconds(model, config, corpus, step, base)
        held_out = len(corpus.validation)
        most = (
            max(config.eval_tokens, int(MAX_FINAL_FRACTION * 60 * (config.minutes or 0) / per_token))
            if per_token
            else 0
        )
        return cls(
            start=planning + STARTING,
            evaluation=per_token * min(config.eval_tokens, held_out)
            + _SAVING
            + 4 * trained_parameters(model, config) / _WRITTEN,
            saving=_SAVING + state_bytes(model, config.optimizer, training=config) / _WRITTEN,
            sample=_SAMPLE,
            index=bytes_to_index(corpus.train_bytes, 60 * (config.minutes or 0)) / INDEX_SPEED,
            final=per_token * min(held_out, most),
        )

    def training_seconds(self, config: TrainConfig, seconds_per_step: float) -> float:
        """What a budget in minutes leaves for training steps, as `Budget` divides it."""
        assert config.minutes is not None
        budget, pause = 60 * config.minutes, self.evaluation + self.saving
        end = max(budget - self.evaluation - self.final, 0.5 * budget)
        index = 0.0 if config.sample_every == 0 else self.index
        seconds = max(0.0, end - self.start - pause - index)
        if config.eval_every is None:
            between = training_between(self.evaluation, end - self.start)
            evaluations = min(EVALUATIONS * seconds / end, seconds / between)
        else:
            evaluations = seconds / (config.eval_every * seconds_per_step + pause)
        if config.sample_every is None:
            samples = SAMPLES * seconds / end
        else:
            samples = config.sample_every and seconds / (config.sample_every * seconds_per_step + self.sample)
        return max(0.0, seconds - int(evaluations) * pause - int(samples) * self.sample)
