"""How good the model is at the moment, by its validation loss and by what it writes, and what becomes of that: the best
weights, the log, the events. When to look is not known here."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from minigpt.config import SamplingConfig, TrainConfig
from minigpt.data.corpus import Corpus
from minigpt.errors import TrainingError
from minigpt.evaluation.perplexity import Evaluation, evaluate
from minigpt.generation.engines.pytorch import TorchEngine
from minigpt.generation.engines.resolve import resolve_engine
from minigpt.generation.streaming import generate_text
from minigpt.inspection.surprisal import passage, surprisal
from minigpt.model.gpt import GPT
from minigpt.training.budget import Budget
from minigpt.training.checkpointing import Checkpointer
from minigpt.training.clock import Clock
from minigpt.training.distributed import World
from minigpt.training.events import Evaluation as Evaluated
from minigpt.training.events import Event, Notice, Sample, Saved
from minigpt.training.memorization import MemorizationMonitor
from minigpt.training.memory import is_out_of_memory
from minigpt.training.progress import Progress
from minigpt.training.reporting import DivergedError

_SAMPLING = SamplingConfig(max_new_tokens=120, temperature=0.8, top_p=0.95, seed=0)
_FINAL_SHARE = 0.1  # of a budget in minutes, the most that the last evaluation may take


class Evaluator:
    """Measures the validation part, where there is one, and draws samples, always in the same way.

    On a CPU in float32 whatever the run trains in, so that its figures are those of the weights it saves, as
    `minigpt evaluate` gives them; elsewhere in the run's dtype. `seconds_per_token` is what the last evaluation took.
    """

    def __init__(self, model: GPT, corpus: Corpus, config: TrainConfig, dtype: torch.dtype, world: World) -> None:
        self.model, self.corpus, self.config, self.world = model, corpus, config, world
        self.dtype = torch.float32 if world.device(config.device).type == "cpu" else dtype
        self.has_validation = len(corpus.validation) > 1
        self.seconds_per_token = 0.0

    def measure(self, max_tokens: int | None) -> Evaluation | None:
        """The loss over so many validation tokens, None for all of them."""
        if not self.has_validation:
            return None
        with self._reading():
            return evaluate(
                self.model,
                self.corpus.validation,
                token_lengths=self.corpus.tokenizer.token_lengths,
                context=self.config.context_length,
                max_tokens=max_tokens,
                dtype=self.dtype,
                readers=self.world,
            )

    def record_duration(self, seconds: float, tokens: int | None = None) -> None:
        """Learns how long an evaluation took; of so many tokens, or as a run in its middle reads."""
        tokens = tokens or min(self.config.eval_tokens, len(self.corpus.validation))
        self.seconds_per_token = seconds / max(1, tokens)

    def measure_finally(self) -> Evaluation | None:
        """The loss over all of it, or as much as a tenth of a budget in minutes is enough for."""
        return self.measure(self._final_tokens())

    def final_seconds(self) -> float:
        """How long that will take. Units: seconds."""
        n_tokens = len(self.corpus.validation)
        return self.seconds_per_token * min(n_tokens, self._final_tokens() or n_tokens)

    def _final_tokens(self) -> int | None:
        if self.config.minutes is None or not self.seconds_per_token:
            return None
        return max(self.config.eval_tokens, int(_FINAL_SHARE * 60 * self.config.minutes / self.seconds_per_token))

    def surprisal(self) -> dict[str, list[Any]]:
        """The first tokens of the validation part, always the same, and the loss of each but the first, for the log.

        Units: nats, to a thousandth.
        """
        ids = passage(self.corpus.validation, self.model.config.n_positions)
        with self._reading():
            return {"passage": ids, "surprise": surprisal(self.model, ids)}

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """A context in which the model is read.

        Raises: TrainingError where that is more than the memory holds.
        """
        try:
            with self.world.unsharded(self.model):
                yield
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise TrainingError(
                f"evaluating is more than the memory of {self.world.device(self.config.device)} holds; give a smaller "
                "--preset or a shorter --context-length; what was saved before stands"
            ) from error.with_traceback(None)

    def sample(self) -> str:
        """What the model writes, from the same prompt and seed each time."""
        with self._reading():
            # Some tokens now and then are no reason to record graphs, and sharded weights cannot be in one.
            on_cpu = self.model.token_embedding.weight.device.type == "cpu"
            engine = resolve_engine(self.model) if on_cpu else TorchEngine(self.model)
            return "".join(generate_text(engine, self.corpus.tokenizer, self.config.sample_prompt, _SAMPLING))


class Examinations:
    """Evaluations and samples of a run, each logged and told. What an event tells of is done before it is yielded: the
    caller may leave at any of them."""

    def __init__(
        self,
        evaluator: Evaluator,
        checkpointer: Checkpointer,
        memorization: MemorizationMonitor,
        budget: Budget,
        clock: Clock,
    ) -> None:
        self.evaluator, self.checkpointer, self.memorization, self.budget, self.clock = (
            evaluator,
            checkpointer,
            memorization,
            budget,
            clock,
        )
        self.config = evaluator.config

    def evaluate(self, progress: Progress) -> Iterator[Event]:
        """Measures the validation part and keeps the weights if they are the best; without one, keeps the latest.

        Raises: DivergedError where the loss is not finite.
        """
        if progress.evaluated_step == progress.step:
            return
        started = self.clock.read(progress)
        measured = self.evaluator.measure(self.config.eval_tokens)
        if measured is not None and not math.isfinite(measured.loss):
            raise DivergedError(f"the validation loss is {measured.loss}")
        saved = self._keep_if_best(progress, measured.loss if measured else None)
        progress.evaluated_at = self.clock.read(progress)
        progress.evaluation_seconds = progress.evaluated_at - started
        if progress.step == 0:
            progress.began_at = progress.evaluated_at
        if measured is not None:
            yield self._log(progress, measured)
        yield from self.checkpointer.take_notices(progress.step)
        if saved is not None:
            yield saved

    def _keep_if_best(self, progress: Progress, loss: float | None) -> Saved | None:
        """Writes the weights where none had a lower loss, and notes how the loss stands to those before."""
        best = loss is None or progress.best_loss is None or loss < progress.best_loss
        best = best or (loss, progress.step) == (progress.best_loss, progress.best_step)  # written, but no state since
        saved = self.checkpointer.save_best(self.evaluator.model, progress.step, loss) if best else None
        best = best and not (
            self.checkpointer.keeps and saved is None
        )  # what the disk refused is not kept: not the best
        if best:
            progress.best_loss, progress.best_step = loss, progress.step
        lower = loss is None or progress.lowest_loss is None or loss < progress.lowest_loss
        progress.lowest_loss = loss if lower else progress.lowest_loss
        progress.stale_evaluations = 0 if lower else progress.stale_evaluations + 1
        progress.evaluated_step, progress.evaluated_best = progress.step, best
        return saved

    def _log(self, progress: Progress, measured: Evaluation) -> Evaluated:
        self.evaluator.record_duration(progress.evaluation_seconds, measured.tokens)
        if self.config.minutes is not None and progress.cooling_since is None:
            # What follows the last step: an evaluation with its saves, and the one over everything.
            progress.closing_seconds = progress.evaluation_seconds + self.evaluator.final_seconds()
        event = Evaluated(
            step=progress.step,
            validation_loss=measured.loss,
            bits_per_byte=measured.bits_per_byte,
            tokens=progress.tokens,
            seconds=progress.seconds,
            best=progress.evaluated_best,
        )
        self.checkpointer.log_event(
            event, "step", "validation_loss", "bits_per_byte", "tokens", "seconds", **self.evaluator.surprisal()
        )
        self.memorization.record_loss(progress.step, measured.loss)
        return event

    def sample(self, progress: Progress) -> Iterator[Event]:
        """Draws a sample, from the same prompt and seed each time, and sees what of it is copied."""
        prompt, text, copying, passage = self.config.sample_prompt, self.evaluator.sample(), None, None
        if self.budget.progress_fraction(progress) > 0 and self.checkpointer.world.is_main:
            whole = progress.seconds + self.budget.seconds_left(progress)
            copying = self.memorization.measure(progress.step, text, prompt, whole)
            passage = self.memorization.locate(copying)
        progress.sampled_step, progress.sampled_at = progress.step, self.clock.read(progress)
        figures = copying.figures() if copying else {}
        self.checkpointer.log({"step": progress.step, "prompt": prompt, "sample": text, **figures})
        yield Sample(progress.step, prompt, text, copying, passage)
        notices, self.memorization.notices = self.memorization.notices, []
        for notice in notices:
            yield Notice(progress.step, notice)
