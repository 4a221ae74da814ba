"""Evaluation during training: the validation loss, samples of generated text, and what edges measure on them."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from minigpt.config import SamplingConfig, TrainConfig
from minigpt.data.corpus import Corpus
from minigpt.edges import provided
from minigpt.errors import GenerationError, TrainingError
from minigpt.evaluation.monitor import Monitor
from minigpt.evaluation.perplexity import EvaluationResult, evaluate
from minigpt.generation.engine import Engine
from minigpt.generation.resolve_engine import resolve_engine
from minigpt.generation.streaming import generate_text
from minigpt.model.gpt import GPT
from minigpt.training.budget import Budget
from minigpt.training.checkpointing import Checkpointer
from minigpt.training.clock import Clock
from minigpt.training.events import Evaluation, Event, Notice, Sample
from minigpt.training.memory import is_out_of_memory
from minigpt.training.progress import Progress
from minigpt.training.spike_detection import DivergedError, SpikeDetector
from minigpt.training.world import World

_SAMPLING = SamplingConfig(max_new_tokens=120, temperature=0.8, top_p=0.95, seed=0)
_LAST_TEXTS = 4  # of which the last sample is the most likely
MAX_FINAL_FRACTION = 0.1  # of a budget in minutes, for the last evaluation


class Evaluator:
    """Measures the validation text, if there is one, and generates samples, always in the same way.

    `measures` says whether there is one, of more than one token that stands for text.

    On a CPU it evaluates in float32 whatever dtype the run trains in, so that the figures are those of the saved
    weights, as `minigpt evaluate` gives them; elsewhere in the run's dtype. `seconds_per_token` is the mean speed of
    the evaluations so far, per token read. With `loss_on`, only the tokens of that role's turns are scored, about
    `scored_fraction` of those read. Without `whole_text`, the final evaluation is like the others.
    """

    def __init__(
        self,
        model: GPT,
        corpus: Corpus,
        config: TrainConfig,
        dtype: torch.dtype,
        world: World,
        *,
        whole_text: bool = True,
    ) -> None:
        self.model, self.corpus, self.config, self.world, self.whole_text = model, corpus, config, world, whole_text
        self.dtype = torch.float32 if world.device(config.device).type == "cpu" else dtype
        self.scored = corpus.scored(config.scored_role)
        scored = corpus.validation[1:]
        self.measures = bool(len(scored) and corpus.tokenizer.token_lengths[scored].any())
        self.scored_fraction = 1.0 if self.scored is None or not len(self.scored) else float(self.scored.mean())
        self._seconds, self._tokens = 0.0, 0
        self._assumed = 0.0  # seconds per token, until an evaluation is measured
        context = config.context_length or model.config.n_positions
        prompts = (choose(corpus, context // 2) for choose in provided("sample_prompt"))
        self.sample_prompt = next(filter(None, prompts), "") if config.sample_prompt is None else config.sample_prompt

    def evaluate(self) -> EvaluationResult | None:
        """The loss on evenly spaced windows of about `eval_tokens` validation tokens; None without a validation text.

        Raises: DivergedError if the loss is NaN or infinite.
        """
        evaluation = self._evaluate(self.config.eval_tokens)
        if evaluation is not None and not math.isfinite(evaluation.loss):
            raise DivergedError(f"the validation loss is {evaluation.loss}")
        return evaluation

    def evaluate_finally(self) -> EvaluationResult | None:
        """The loss on all validation tokens, or on as many as a tenth of a budget in minutes is enough for.

        Without `whole_text`, on about `eval_tokens`.
        """
        return self._evaluate(self._final_tokens())

    def final_seconds(self) -> float:
        """The expected duration of `evaluate_finally`. Unit: seconds."""
        n_tokens = len(self.corpus.validation)
        return self.seconds_per_token * min(n_tokens, self._final_tokens() or n_tokens)

    def assume_duration(self, seconds: float) -> None:
        """The duration of `evaluate` until one is measured, such as that of an evaluation that saved weights too."""
        self._assumed = seconds / max(1, min(self.config.eval_tokens, len(self.corpus.validation)))

    def record_duration(self, seconds: float, n_tokens: int) -> None:
        """Records the duration of an evaluation that read `n_tokens`."""
        self._seconds += seconds
        self._tokens += n_tokens

    @property
    def seconds_per_token(self) -> float:
        return self._seconds / self._tokens if self._tokens else self._assumed

    def sample(self, config: SamplingConfig) -> str | None:
        """Generates text, from the same prompt each time; None without memory for all weights.

        Raises: DivergedError if a logit is NaN or infinite.
        """
        if not self.world.can_unshard(self.model):
            return None
        with self.inference(), self.world.unsharded(self.model):
            # A sample is too short to pay for recording CUDA graphs, which do not support sharded weights either.
            on_cpu = self.model.token_embedding.weight.device.type == "cpu"
            engine = resolve_engine(self.model) if on_cpu else Engine(self.model)
            try:
                return "".join(generate_text(engine, self.corpus.tokenizer, self.sample_prompt, config))
            except GenerationError as error:
                raise DivergedError(f"no sample could be drawn: {error}") from error

    def _evaluate(self, max_tokens: int | None) -> EvaluationResult | None:
        if not self.measures:
            return None
        with self.inference():
            return evaluate(
                self.model,
                self.corpus.validation,
                token_lengths=self.corpus.tokenizer.token_lengths,
                context=self.config.context_length,
                max_tokens=max_tokens,
                scored=self.scored,
                dtype=self.dtype,
                world=self.world,
            )

    def _final_tokens(self) -> int | None:
        if not self.whole_text:
            return self.config.eval_tokens
        if self.config.minutes is None or not self.seconds_per_token:
            return None
        seconds = MAX_FINAL_FRACTION * 60 * self.config.minutes
        return max(self.config.eval_tokens, int(seconds / self.seconds_per_token))

    @contextmanager
    def inference(self) -> Iterator[None]:
        """A context in which the model can be called.

        Raises: TrainingError if memory runs out.
        """
        try:
            with self.world.evaluating(self.model):
                yield
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise TrainingError(
                f"out of memory on {self.world.device(self.config.device)} during evaluation; give a smaller --preset "
                "or a shorter --context-length"
            ) from error.with_traceback(None)


class PeriodicEvaluation:
    """The evaluations and samples of a run, when they are due: measured, saved, logged, and then yielded as events.

    An event is yielded only after its result is saved and logged, since the caller may leave there.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        checkpointer: Checkpointer,
        budget: Budget,
        clock: Clock,
        spike_detector: SpikeDetector,
    ) -> None:
        self.evaluator, self.checkpointer = evaluator, checkpointer
        self.monitors: list[Monitor] = [make(evaluator.corpus) for make in provided("monitors")]
        self.budget, self.clock, self.spike_detector = budget, clock, spike_detector
        self.last_loss: float | None = None  # of the last evaluation in this process
        self._error = 0.0  # nats, of its difference to the best, compared with that on all of the text, as measured

    def evaluate(self, progress: Progress) -> Iterator[Event]:
        """Evaluates if it is due, and saves the best weights; without a validation text, the latest ones.

        Raises: DivergedError if the loss or the weights are NaN or infinite, or if the loss is far above a uniform
        guess.
        """
        if not self.budget.evaluation_is_due(progress) or progress.evaluation.step == progress.step:
            return
        self.clock.synchronize(progress)
        started = progress.seconds
        result = self.evaluator.evaluate()
        self.clock.synchronize(progress)
        evaluated = progress.seconds - started
        loss = self.last_loss = result.loss if result else None
        n_targets = max(1, len(self.evaluator.corpus.validation) - 1)
        self._error = math.sqrt(max(0.0, 1 / result.tokens - 1 / n_targets)) if result else 0.0
        if loss is not None:
            self.spike_detector.check_validation_loss(loss, progress.best.loss)
        is_best = progress.would_be_best(loss)
        saved = self.checkpointer.save_best(progress, loss) if is_best else None
        if saved is None and self.checkpointer.is_saving:
            is_best = False  # the disk refused them
        self.clock.synchronize(progress)
        progress.record_evaluation(loss, is_best=is_best, started=started)
        if result is not None:
            self._measure_speed(result, evaluated, progress)
            yield self._log(result, progress)
        yield from self.checkpointer.take_notices(progress.step)
        if saved is not None:
            yield saved

    def evaluate_finally(self, progress: Progress) -> EvaluationResult | None:
        """Evaluates the best weights, which it loads, on more text than during the run; without a run the last.

        The last ones become the best if they are better on that text. They are evaluated only if their loss is higher
        by less than twice its standard error, and a budget in minutes has time for both.
        """
        best, last, of_last, evaluated = progress.best.loss, self.last_loss, None, progress.evaluation
        if not self.checkpointer.is_saving or (evaluated.is_best and evaluated.step == progress.step):
            return self.evaluator.evaluate_finally()
        seconds = 60 * MAX_FINAL_FRACTION * (self.evaluator.config.minutes or math.inf)
        has_time = 2 * self.evaluator.final_seconds() <= seconds
        if best is not None and last is not None and best <= last < best + 2 * self._error and has_time:
            of_last = self.evaluator.evaluate_finally()
        self.checkpointer.load_best()
        measured = self.evaluator.evaluate_finally()
        if of_last is None or measured is None or of_last.loss >= measured.loss:
            return measured
        return of_last if self.checkpointer.choose_last(progress, last) else measured

    def _measure_speed(self, result: EvaluationResult, seconds: float, progress: Progress) -> None:
        """Records the speed of an evaluation, and reserves time of a budget in minutes for the last one."""
        self.evaluator.record_duration(seconds, round(result.tokens / self.evaluator.scored_fraction))
        if self.evaluator.config.minutes is not None and progress.budget.cooldown_step is None:
            progress.reserve_closing_time(self.evaluator.final_seconds())

    def _log(self, result: EvaluationResult, progress: Progress) -> Evaluation:
        event = Evaluation(
            step=progress.step,
            validation_loss=result.loss,
            bits_per_byte=result.bits_per_byte,
            tokens=progress.tokens,
            seconds=progress.seconds,
            best=progress.evaluation.is_best,
        )
        figures = {name: value for name, value in vars(event).items() if name != "best"}
        with self.evaluator.inference():
            for monitor in self.monitors:
                figures |= monitor.on_evaluation(self.evaluator.model, progress.step, result.loss)
        self.checkpointer.log(figures)
        return event

    def sample(self, progress: Progress) -> Iterator[Event]:
        """Generates a sample if it is due, at the end of the run the most likely of several."""
        if not self.budget.sample_is_due(progress):
            return
        config = _SAMPLING.likeliest_of(_LAST_TEXTS) if self.budget.is_spent(progress) else _SAMPLING
        prompt, text = self.evaluator.sample_prompt, self.evaluator.sample(config)
        if text is None:
            progress.record_sample()
            yield Notice(
                progress.step, f"no sample at step {progress.step:,}: not every process has memory for all weights"
            )
            return
        run_seconds = None
        if self.budget.progress_fraction(progress) > 0 and self.checkpointer.world.is_main:
            run_seconds = progress.seconds + self.budget.seconds_left(progress)
        measured: dict[str, Any] = {}
        figures: dict[str, Any] = {"best_of": config.texts_per_prompt}
        for monitor in self.monitors:
            of_event, of_log = monitor.on_sample(progress.step, prompt, text, run_seconds)
            measured |= of_event
            figures |= of_log
        self.clock.synchronize(progress)
        progress.record_sample()
        self.checkpointer.log({"step": progress.step, "prompt": prompt, "sample": text, **figures})
        yield Sample(progress.step, prompt, text, measured, config.texts_per_prompt)
        notices = [notice for monitor in self.monitors for notice in monitor.take_notices()]
        yield from (Notice(progress.step, notice) for notice in notices)
