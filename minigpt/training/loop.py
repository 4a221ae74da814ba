"""`train()`: training as an iterator of events.

Batches and the noise in them are pure functions of the seed, the step and the row; dropout of the seed, the step and
the micro-batch, for which its generator is seeded. So a resumed run equals an uninterrupted one, and no generator is
saved.
"""

import atexit
import inspect
import time
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any

import torch

from minigpt.config import TrainConfig
from minigpt.data.corpus import Corpus
from minigpt.device import allow_tf32, resolve_dtype
from minigpt.errors import CheckpointError, ConfigError, TrainingError
from minigpt.model.gpt import GPT
from minigpt.storage.run import Run
from minigpt.storage.run_record import Result
from minigpt.training.budget import Budget, learning_rate, planned_steps, schedule_height
from minigpt.training.checkpointing import Checkpointer
from minigpt.training.clock import Clock, Control
from minigpt.training.evaluation import Evaluator, PeriodicEvaluation
from minigpt.training.events import EndReason, Event, Finished, Notice, Step
from minigpt.training.progress import Progress
from minigpt.training.spike_detection import DivergedError, RunDivergedError
from minigpt.training.state import TrainingState
from minigpt.training.step import StepResult, TrainStep
from minigpt.training.step_parts import StepParts, build_step_parts
from minigpt.training.world import World

_MAX_ROLLBACKS = 3
_UNSCORED_STEPS = 0.001  # of the steps: more are worth a notice
_STEP_LOG = ("step", "loss", "learning_rate", "gradient_norm", "tokens", "seconds", "tokens_per_second")


def train(
    model: GPT,
    corpus: Corpus,
    config: TrainConfig,
    run: Run | None = None,
    *,
    resume: bool = False,
    control: Control | None = None,
    world: World | None = None,
    elapsed: float = 0.0,
    evaluates_whole_text: bool = True,
    callbacks: Iterable[Callable[[Event], object]] = (),
    **given: Any,
) -> Generator[Event, None, None]:
    """Trains `model` in place and yields an event for every step, evaluation, sample, save and notice.

    With a `run`, its folder gets the log, the best weights and the last state, and the model ends with the best
    weights. Without one nothing is saved, and the model ends with the last weights. Leaving the loop over the events
    stops training and saves, and so does `control.stop`.

    With `resume`, training continues from the run's last state; on a CPU with a budget of steps or epochs, bit for
    bit. If the cool-down of a `trapezoid` schedule has begun for a shorter budget, training continues from before it,
    unless `cooldown` is 1. `elapsed` is the part of a budget in minutes that is used already, in seconds.

    Each of the `callbacks` gets every event before it is yielded. Installed edges take what is `given` beside these
    arguments: the teacher of `minigpt.distillation`, the functions of `minigpt.experiments`.

    At the end, the best weights are evaluated on the whole validation text, if that takes at most a tenth of a budget
    in minutes; without `evaluates_whole_text`, on `eval_tokens`, as during the run.

    Seeds torch's global generator, and allows TF32 on CUDA.

    Raises: ConfigError if settings do not fit the model or the corpus, or if all weights are frozen; DeviceError;
    TrainingError if training diverges repeatedly or memory runs out, with the state that is kept; CheckpointError if
    the run is in use or damaged or cannot be written when it is resumed, or at the end if a save failed.
    """
    world = world or World()
    if run is not None:
        run.lock()
    try:
        with world.translate_errors():
            config = config.replace(context_length=config.context_length or model.config.n_positions)
            _check(model, corpus, config)
            device = world.device(config.device)
            dtype = resolve_dtype(config.dtype, device)
            allow_tf32(device)
            model.to(device)
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)  # fails before CUDA is initialized, which `to` does
            parts = build_step_parts(model, corpus, config, dtype, world, **given)
            trainer = Trainer(parts, config, run, control or Control(), dtype, elapsed, evaluates_whole_text)
            if resume:
                trainer.resume()
    except BaseException:
        if run is not None:
            run.unlock()
        raise
    events = _unlocking(trainer.events(), run, tuple(callbacks))
    next(events)
    _running.add(events)
    return events


def _unlocking(
    events: Generator[Event, None, None], run: Run | None, callbacks: Sequence[Callable[[Event], object]]
) -> Generator[Event, None, None]:
    """The events after one that only begins this generator: from then on, closing it unlocks the run."""
    try:
        yield Notice(0, "ready")
        with closing(events):  # so that an error in a callback, too, saves the run
            for event in events:
                for callback in callbacks:
                    callback(event)
                yield event
    finally:
        if run is not None:
            run.unlock()


_running: weakref.WeakSet[Generator[Event, None, None]] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Closes unfinished runs before the interpreter shuts down, while they can still save."""
    failures = []
    for events in list(_running):
        if inspect.getgeneratorstate(events) == inspect.GEN_SUSPENDED:
            try:
                events.close()
            except Exception as error:  # any, so that the other runs are saved
                failures.append(error)
    if failures:
        raise ExceptionGroup("unfinished runs could not be saved", failures)


def _check(model: GPT, corpus: Corpus, config: TrainConfig) -> None:
    """Raises ConfigError for settings, a model and a corpus that do not fit together."""
    positions, vocab_size, context = model.config.n_positions, model.config.vocab_size, config.context_length or 1
    if context > positions:
        raise ConfigError(f"context_length ({context}) must be at most the model's n_positions ({positions})")
    if corpus.tokenizer.vocab_size > vocab_size:
        raise ConfigError(
            f"the corpus's tokenizer has {corpus.tokenizer.vocab_size} tokens; the model's vocabulary has only "
            f"{vocab_size}"
        )
    config.check_model(model)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(
            "the model has no weights to train: all are frozen, as a teacher's are; call model.requires_grad_(True)"
        )
    corpus.check_loss_on(config.scored_role)


class Trainer:
    """The training loop and the parts that it connects."""

    def __init__(
        self,
        parts: StepParts,
        config: TrainConfig,
        run: Run | None,
        control: Control,
        dtype: torch.dtype,
        elapsed: float = 0.0,
        evaluates_whole_text: bool = True,
    ) -> None:
        self.config, self.run, self.corpus, self.world = config, run, parts.corpus, parts.world
        self.train_step = TrainStep(parts, config, self.world.device(config.device), dtype)
        self.tokens_per_step = self.train_step.batch_size * self.train_step.context
        self.budget = Budget(config, planned_steps(config, len(self.corpus.train)))
        self.clock = Clock(control, self.world)
        self.evaluator = Evaluator(parts.model, self.corpus, config, dtype, self.world, whole_text=evaluates_whole_text)
        state = TrainingState(self.train_step, self.corpus.fingerprint)
        self.checkpointer = Checkpointer(run, state, self.corpus.tokenizer, self.world)
        self.evaluation = PeriodicEvaluation(
            self.evaluator, self.checkpointer, self.budget, self.clock, self.train_step.spike_detector
        )
        (elapsed,) = self.world.all_reduce_max([elapsed])
        self.progress = Progress.start(elapsed, config.learning_rate)
        self.start_timers()

    def resume(self) -> None:
        """Continues from the run's last state, if there is one.

        Raises: ConfigError without a run.
        """
        if not self.checkpointer.is_saving:
            raise ConfigError("resume needs a run: give the run that has the last state")
        restored = self.checkpointer.resume(self.budget)
        if restored is not None:
            self._continue_from(restored)
        if self.run is not None:
            log = list(self.run.read_log())
            comparable = list(self.run.record.comparable_evaluations(log))
            for monitor in self.evaluation.monitors:
                monitor.load_log(log, comparable)
        self.start_timers()

    def start_timers(self) -> None:
        """Starts to measure the time of the run and of its next step."""
        self.clock.start(self.progress.seconds)
        self._last_result = time.perf_counter()

    def events(self) -> Generator[Event, None, None]:
        """Trains from the current step to the end of the run."""
        try:
            with self.world.translate_errors():
                yield from self.checkpointer.take_notices(self.progress.step)
                yield from self._unscored_steps()
                yield from self._compile()
                try:
                    end = yield from self._train()
                except GeneratorExit:  # the caller left between two events: the state is complete
                    self._save_at_exit()
                    raise
                if end is None:
                    yield from self._stop()
                else:
                    yield self._finish(end)
                if self.checkpointer.failure is not None:
                    raise self.checkpointer.failure
                if end is not None and self._has_diverged():
                    raise RunDivergedError(
                        f"training diverged: the validation loss rose to {self.evaluation.last_loss:.4g} nats per "
                        "token, more than a uniform guess, and was never below that of step 0",
                        self._advice,
                    )
        except RunDivergedError as error:
            raise RunDivergedError(f"{error.observed}; {self.checkpointer.kept}", error.advice) from error
        except TrainingError as error:
            raise type(error)(f"{error}; {self.checkpointer.kept}") from error

    def _train(self) -> Generator[Event, None, EndReason | None]:
        """The training loop; returns why the run has ended, None if a stop was requested."""
        end: EndReason | None = None
        while end is None:
            self.clock.synchronize(self.progress)
            if self.clock.stop:
                break
            try:
                spent = self.budget.is_spent(self.progress)
                pauses = spent or self._something_is_due()
                if pauses:
                    yield from self._pending_results()
                    yield from self.evaluation.evaluate(self.progress)
                    yield from self.evaluation.sample(self.progress)
                yield from self._start_cooldown()
                end = self.budget.end_reason(self.progress, spent=spent)
                if end is not None or self._save_is_due():
                    yield from self._save()
                if pauses:
                    self._restart_step_timer()
                if end is None and not self.clock.stop:
                    yield from self._take_step()
            except DivergedError as error:
                yield self._roll_back(error)
                end = None
        return end

    def _something_is_due(self) -> bool:
        budget, progress = self.budget, self.progress
        return budget.evaluation_is_due(progress) or budget.sample_is_due(progress) or self._save_is_due()

    def _save_is_due(self) -> bool:
        saved_step, saved_seconds = self.checkpointer.saved_step, self.checkpointer.saved_seconds
        return self.budget.save_is_due(self.progress, saved_step, saved_seconds, requested=self.clock.save)

    # Steps.

    def _take_step(self) -> Iterator[Event]:
        progress = self.progress
        fraction = self.budget.progress_fraction(progress)
        if (given := self.train_step.parts.learning_rate) is not None:
            scheduled = given(progress.step, fraction)
        else:
            scheduled = learning_rate(progress.step, fraction, self.config)
        results = self.train_step.step(
            progress.step, scheduled * progress.recovery.learning_rate_factor, schedule_height(fraction, self.config)
        )
        progress.count_step(self.tokens_per_step)
        self.clock.update(progress)
        notices, self.train_step.notices = self.train_step.notices, []
        yield from (Notice(progress.step, text) for text in notices)
        yield from self._record(results)

    def _pending_results(self) -> Iterator[Event]:
        """Waits for the results of the last steps."""
        yield from self._record(self.train_step.results())

    def _record(self, results: list[StepResult]) -> list[Event]:
        """Logs the results of steps and returns their events.

        Raises: DivergedError as `StepResult.check_divergence`.
        """
        events: list[Event] = []
        for result in results:
            self.progress.record_result(skipped=result.skipped, overflowed=result.overflowed)
            step = self._step_event(result)
            self.checkpointer.log(
                {name: getattr(step, name) for name in _STEP_LOG} | ({"skipped": True} if step.skipped else {})
            )
            events.append(step)
            recovery = self.progress.recovery
            if step.skipped:
                reason = f"skipped step {step.step:,}: {result.skip_reason} ({recovery.skipped_steps} skipped so far)"
                events.append(Notice(step.step, reason))
            result.check_divergence(recovery.consecutive_skips)
        return events

    def _step_event(self, result: StepResult) -> Step:
        progress, now = self.progress, time.perf_counter()
        tokens_per_second, self._last_result = self.tokens_per_step / (now - self._last_result), now
        return Step(
            step=result.step,
            progress=self.budget.progress_fraction(progress),
            loss=result.loss,
            learning_rate=result.learning_rate,
            gradient_norm=result.gradient_norm,
            tokens=progress.tokens - (progress.step - result.step) * self.tokens_per_step,
            seconds=progress.seconds,
            seconds_left=self.budget.seconds_left(progress),
            tokens_per_second=tokens_per_second,
            skipped=result.skipped,
        )

    def _restart_step_timer(self) -> None:
        """Excludes the time since the last step from the next step's `tokens_per_second`."""
        self._last_result = time.perf_counter()

    # The cool-down, saves and rollbacks.

    def _start_cooldown(self) -> Iterator[Event]:
        """If the learning rate falls from here to the end, saves the state from which a longer budget continues."""
        progress = self.progress
        shortened_to = self.budget.early_cooldown(progress)
        if shortened_to is None and not self.budget.cooldown_is_due(progress):
            return
        if shortened_to is not None:
            progress.shorten_budget(shortened_to)
            yield Notice(
                progress.step,
                f"step {progress.step:,}: validation no longer improves, so the learning rate starts to decay now",
            )
        yield from self._pending_results()
        self.checkpointer.save_before_cooldown(progress)
        progress.start_cooldown()
        self._restart_step_timer()
        yield from self.checkpointer.take_notices(progress.step)

    def _save(self) -> Iterator[Event]:
        """Saves what resuming needs."""
        saved = self.checkpointer.save_last(self.progress)
        self.clock.save = False
        yield from self.checkpointer.take_notices(self.progress.step)
        if saved is not None:
            yield saved

    def _roll_back(self, error: DivergedError) -> Notice:
        """Continues from the last saved state with half the learning rate.

        Raises: RunDivergedError if there is none, or after too many rollbacks.
        """
        self.clock.synchronize(self.progress)
        self.train_step.results()
        self.train_step.zero_gradients()
        diverged, rollbacks = self.progress, self.progress.recovery.rollbacks
        restored = self.checkpointer.roll_back() if rollbacks < _MAX_ROLLBACKS else None
        if restored is None:
            again = f", also after {rollbacks} rollbacks that each halved the learning rate" if rollbacks else ""
            self._record_result(
                Result(step=diverged.step, reason="diverged", best_step=diverged.best.step, seconds=diverged.seconds)
            )
            best = f"; the best weights are those of step {diverged.best.step:,}" if self.checkpointer.is_saving else ""
            raise RunDivergedError(
                f"training diverged after step {diverged.step:,} ({error}){again}{best}", self._advice
            )
        self._continue_from(restored)
        self.progress.continue_after(diverged)
        self.checkpointer.save_last(self.progress, again=True)  # with the lower learning rate
        self._restart_step_timer()
        return Notice(
            self.progress.step,
            f"training diverged after step {diverged.step:,} ({error}); resumed from step {self.progress.step:,} with "
            f"{self.progress.recovery.learning_rate_factor:g} of the learning rate",
        )

    def _has_diverged(self) -> bool:
        """Whether the run, which has ended, never improved and its validation loss is worse than a uniform guess."""
        best, detector = self.progress.best, self.train_step.spike_detector
        return best.step == 0 and detector.ends_diverged(self.evaluation.last_loss, best.loss)

    @property
    def _advice(self) -> str:
        warmup = "chosen" if self.config.warmup_steps is None else self.config.warmup_steps
        return f"lower --learning-rate, now {self.config.learning_rate:g}, or raise --warmup-steps, now {warmup}"

    def _continue_from(self, restored: Progress) -> None:
        self.progress = restored
        restored.use_learning_rate(self.config.learning_rate)
        self.evaluator.assume_duration(restored.evaluation.duration)

    # Start and end.

    def _unscored_steps(self) -> Iterator[Event]:
        """Says so if steps will score no token, which change nothing."""
        context, size = self.train_step.context, self.train_step.batch_size
        tokens, windows = self.corpus.scored_shares(self.config.scored_role, context)
        unscored = (1 - windows) ** size
        if unscored > _UNSCORED_STEPS:
            yield Notice(
                self.progress.step,
                f"the loss includes {tokens:.1%} of the training tokens; {1 - windows:.0%} of the windows of {context} "
                f"tokens have none of them, so about {unscored:.1%} of the steps change nothing; raise "
                f"--context-length, now {context}, or --batch-size, now {size}",
            )

    def _compile(self) -> Iterator[Event]:
        """Compiles the forward pass if the settings ask for it; if that fails, reports it and continues without."""
        if not self.config.compiles(self.train_step.device.type, sharded=self.world.is_sharded):
            return
        failure = self.train_step.compile()
        self._restart_step_timer()
        if failure is not None:
            yield Notice(self.progress.step, f"torch.compile failed ({failure}); training continues without it")

    def _stop(self) -> Iterator[Event]:
        """Saves the state at which the run stops; if its last steps diverged, the previous state is kept."""
        try:
            yield from self._pending_results()
            yield from self._save()
        except DivergedError as error:
            yield Notice(self.progress.step, f"{error}; not saved: {self.checkpointer.kept}")

    def _save_at_exit(self) -> None:
        if self.world.size > 1:  # the others do not take part, so that nothing can be saved
            return
        for _ in self._stop():
            pass
        if self.checkpointer.failure is not None:
            raise self.checkpointer.failure from None

    def _finish(self, reason: EndReason) -> Finished:
        """Evaluates the best weights, which it loads, or without a run the last."""
        progress, is_saving = self.progress, self.checkpointer.is_saving
        is_best = progress.evaluation.is_best and progress.evaluation.step == progress.step
        if is_saving and not is_best:
            self.checkpointer.load_best()
        measured = self.evaluator.evaluate_finally()
        self.clock.synchronize(progress)
        finished = Finished(
            step=progress.step,
            reason="diverged" if self._has_diverged() else reason,
            best_step=progress.best.step if is_saving else progress.step,
            validation_loss=measured.loss if measured else None,
            bits_per_byte=measured.bits_per_byte if measured else None,
            validation_tokens=measured.tokens if measured else 0,
            seconds=progress.seconds,
        )
        self._record_result(Result(**vars(finished)))
        return finished

    def _record_result(self, result: Result) -> None:
        if self.run is not None:
            try:
                self.run.update(result=result)
            except CheckpointError as error:  # raised after the last event
                self.checkpointer.failure = self.checkpointer.failure or error
