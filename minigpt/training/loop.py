"""Training as an iterator of events; it knows no terminal, and leaving the iterator is how to stop it.

Everything random is a pure function of the seed, the step and the row: the batches, the noise in them, and the dropout,
whose generator is seeded anew for every micro-batch, by its first row. So a resumed run goes on as if it had never
stopped, and no generator's state is ever stored.
"""

import atexit
import inspect
import weakref
from collections.abc import Generator, Iterator
from typing import Literal

import torch

from minigpt.config import TrainConfig
from minigpt.data.corpus import Corpus
from minigpt.device import allow_tf32, resolve_dtype
from minigpt.errors import CheckpointError, ConfigError, TrainingError
from minigpt.model.gpt import GPT
from minigpt.storage.run import Run
from minigpt.storage.run_record import Result
from minigpt.training.budget import Budget, planned_steps
from minigpt.training.checkpointing import Checkpointer, NotFiniteError
from minigpt.training.clock import Clock, Control
from minigpt.training.distributed import World
from minigpt.training.evaluation import Evaluator, Examinations
from minigpt.training.events import Event, Finished, Notice
from minigpt.training.memorization import MemorizationMonitor
from minigpt.training.optimizers import learning_rate
from minigpt.training.progress import Progress, TrainingState
from minigpt.training.reporting import DivergedError, Reporter
from minigpt.training.step import StepResult, TrainStep

_TIMES_BACK = 3  # a run goes back after a divergence before it gives up
_begun: weakref.WeakSet[Generator[Event, None, None]] = weakref.WeakSet()


@atexit.register
def _leave_all() -> None:
    """Leaves the runs whose events nobody reads to the end while Python is whole: half cleared away, it cannot save."""
    failures = []
    for events in list(_begun):
        if inspect.getgeneratorstate(events) == inspect.GEN_SUSPENDED:
            try:
                events.close()
            except Exception as error:  # whatever it is, the other runs are to be saved
                failures.append(error)
    if failures:
        raise ExceptionGroup("what was left in the middle of a run could not be saved", failures)


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
) -> Generator[Event, None, None]:
    """Trains `model` in place on the corpus and yields what happens, event by event.

    With a `run`, its folder keeps the log, the weights with the lowest validation loss and the last state, and the
    model ends as the best weights; without one nothing is kept, and it ends as the last. With `resume`, training
    goes on from the run's last state: on a CPU bit for bit, where the budget is steps or epochs. A budget that is
    longer than the one which the run has begun to cool down for takes it back to before that. Leaving the loop over
    the events stops training and saves; so does `control.stop`. `elapsed` are the seconds of a budget in minutes that
    are gone already. Seeds torch's global generator, and allows TF32 on CUDA.

    Raises: ConfigError for settings that do not fit the model or the corpus; TrainingError where the loss stops
    being finite again and again or memory runs out (the last saved state stays); CheckpointError where the run is in
    use, or cannot be written at the end.
    """
    world = world or World()
    if run is not None:
        run.lock()
    try:
        with world.translate_errors():
            training = _Training(model, corpus, config, run, resume, control or Control(), world, elapsed)
    except BaseException:
        if run is not None:
            run.unlock()
        raise
    events = training.events()
    _begun.add(events)
    return events


class _Training:
    def __init__(
        self,
        model: GPT,
        corpus: Corpus,
        config: TrainConfig,
        run: Run | None,
        resume: bool,
        control: Control,
        world: World,
        elapsed: float,
    ) -> None:
        self.context = config.context_length or model.config.n_positions
        self.config = config = config.replace(context_length=self.context)
        _check_fit(model, corpus, self.context)
        self.device = world.device(config.device)
        self.dtype = resolve_dtype(config.dtype, self.device)
        allow_tf32(self.device)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        self.model, self.corpus, self.run, self.world = model.to(self.device), corpus, run, world
        self.train_step = TrainStep(model, corpus, config, self.device, self.dtype, world)
        self.tokens_per_step = self.train_step.batch_size * self.context
        self.parts = TrainingState(
            model, self.train_step.optimizers, self.train_step.scaler, self.train_step.spike_detector
        )
        self.budget = Budget(config, planned_steps(config, len(corpus.train)))
        (elapsed,) = world.all_reduce_max([elapsed])
        self.progress = Progress(
            seconds=elapsed,
            began_at=elapsed,
            sampled_at=elapsed,
            optimizer=config.optimizer,
            corpus=corpus.fingerprint,
            learning_rate=config.learning_rate,
        )
        self.checkpointer = Checkpointer(run, self.parts, world, config.optimizer, corpus.fingerprint)
        self.memorization = MemorizationMonitor(corpus)
        self.clock = Clock(control, world)
        self.evaluator = Evaluator(model, corpus, config, self.dtype, world)
        self.examinations = Examinations(self.evaluator, self.checkpointer, self.memorization, self.budget, self.clock)
        if resume:
            if not self.checkpointer.keeps:
                raise ConfigError("resume needs a run to resume; give the run whose folder holds its last state")
            self._take_up(self.checkpointer.resume(self.budget))
            self.memorization.recall(run.read_log() if run is not None else ())
        self.clock.set(self.progress.seconds)
        self.reporter = Reporter(self.budget, self.tokens_per_step)

    def events(self) -> Generator[Event, None, None]:
        """The run, from wherever it stands."""
        try:
            with self.world.translate_errors():
                yield from self._events()
        finally:
            if self.run is not None:
                self.run.unlock()

    def _events(self) -> Generator[Event, None, None]:
        """What is due between two steps, then a step, until the budget is spent."""
        yield from self.checkpointer.take_notices(self.progress.step)
        yield from self._compile()
        reason: Literal["length", "early stop"] | None = None
        try:
            while reason is None and not self._stop_is_asked():
                try:
                    reason = yield from self._between_steps()
                    if reason is None and not self.clock.stop:
                        yield from self._step()
                except (DivergedError, NotFiniteError) as error:
                    yield self._roll_back(_what_diverged(error))
        except GeneratorExit:  # the caller left between two events, where the state is whole
            if self.world.size == 1:  # one process of several cannot save without the others
                for _ in self._stop():
                    pass
                if self.checkpointer.failure is not None:
                    raise self.checkpointer.failure from None
            raise
        if reason is None:
            yield from self._stop()
        else:
            yield self._finish(reason)
        if self.checkpointer.failure is not None:
            raise self.checkpointer.failure

    def _stop(self) -> Iterator[Event]:
        """Saves where the run is left; where its last steps went wrong, says that the last good state stands."""
        try:
            yield from self._results()
            yield from self._save_last()
        except (DivergedError, NotFiniteError) as error:
            yield Notice(self.progress.step, f"{_what_diverged(error)}: not saved, {self.checkpointer.kept}")

    def _between_steps(self) -> Generator[Event, None, Literal["length", "early stop"] | None]:
        """What is due before the next step; returns why there is none, where there is none."""
        over = self.budget.is_over(self.progress)
        pauses = over or self._something_is_due()
        if pauses:
            yield from self._results()
        if self.budget.evaluation_is_due(self.progress):
            yield from self.examinations.evaluate(self.progress)
        if self.budget.sample_is_due(self.progress):
            yield from self.examinations.sample(self.progress)
        yield from self._start_cooling()
        stop_early = self.budget.is_stale(self.progress)
        if over or stop_early or self._save_is_due():
            yield from self._save_last()
        if pauses:
            self.reporter.restart()
        if over and self.progress.cut is None:
            return "length"
        return "early stop" if over or stop_early else None

    def _something_is_due(self) -> bool:
        budget, progress = self.budget, self.progress
        return budget.evaluation_is_due(progress) or budget.sample_is_due(progress) or self._save_is_due()

    def _save_is_due(self) -> bool:
        """Whether to save the last state: it is never older than the best weights, lest the two part company."""
        every, progress = self.config.save_every, self.progress
        if self.checkpointer.saved_step == progress.step or (
            progress.consecutive_skips and not self.budget.is_over(progress)
        ):
            return False  # while steps are left out, the last state is the last that is known to be good
        evaluated = progress.evaluated_step == progress.step
        due = progress.step % every == 0 or (evaluated and progress.evaluated_best) if every else evaluated
        late = progress.seconds - self.checkpointer.saved_at > 60 * self.config.save_minutes
        return due or late or self.clock.save or self.budget.is_over(progress)

    def _stop_is_asked(self) -> bool:
        """Whether anyone wants the run to stop, heard once a step."""
        self.clock.read(self.progress)
        return self.clock.stop

    # One step.

    def _step(self) -> Iterator[Event]:
        """Takes a step; yields what is known of the steps so far."""
        progress, train_step = self.progress, self.train_step
        rate = learning_rate(progress.step, self.budget.progress_fraction(progress), self.config) * progress.rate_factor
        results = train_step.step(progress.step, rate)
        progress.step += 1
        progress.tokens += self.tokens_per_step
        progress.micro_batch_size = train_step.micro_batch_size
        self.clock.read_local(progress)
        for text in train_step.notices:
            yield Notice(progress.step, text)
        train_step.notices.clear()
        yield from self._note(results)

    def _results(self) -> Iterator[Event]:
        """The steps whose result was still on its way."""
        yield from self._note(self.train_step.results())

    def _note(self, results: list[StepResult]) -> list[Event]:
        """Logs the results of steps, and makes events of them.

        Raises: DivergedError as `Reporter.check`.
        """
        events: list[Event] = []
        for result in results:
            step, *notices = self.reporter.events_of(result, self.progress)
            names = ("step", "loss", "learning_rate", "gradient_norm", "tokens", "seconds", "tokens_per_second")
            self.checkpointer.log_event(step, *names, *(["skipped"] if result.skipped else []))
            events += [step, *notices]
            self.reporter.check(result, self.progress)
        return events

    def _roll_back(self, what: str) -> Notice:
        """Takes up the last saved state with half the learning rate.

        Raises: TrainingError where there is none, or that was done a few times already.
        """
        self.clock.read(self.progress)
        self.train_step.results()
        self.train_step.zero_gradients()
        progress, step = self.progress, self.progress.step
        times, factor, seconds = progress.times_back + 1, progress.rate_factor / 2, progress.seconds
        back = self.checkpointer.roll_back() if times <= _TIMES_BACK else None
        if back is None:
            tried = f", {progress.times_back} times with half the rate again" if progress.times_back else ""
            rate, warmup = self.config.learning_rate, self.config.warmup_steps or "chosen"
            raise TrainingError(
                f"training has diverged after step {step}{tried} ({what}); {self.checkpointer.kept}: lower "
                f"--learning-rate, now {rate:g}, or raise --warmup-steps, now {warmup}"
            )
        self._take_up(back)
        back.times_back, back.rate_factor, back.seconds, back.consecutive_skips = times, factor, seconds, 0
        self.checkpointer.save_last(back, again=True)  # with the smaller rate
        self.reporter.restart()
        return Notice(
            self.progress.step,
            f"training diverged after step {step:,} ({what}): back to step {self.progress.step:,} with "
            f"{factor:g} of the learning rate",
        )

    def _start_cooling(self) -> Iterator[Event]:
        """Keeps the state that a longer budget would go on from, once the rate is about to fall for good.

        That begins early where the validation loss no longer improves: at a high rate it often does not while it
        still falls by a lower one.
        """
        progress, budget = self.progress, self.budget
        if progress.cooling_since is not None or budget.cooling_from == 1:
            return
        share = budget.progress_fraction(progress)
        if budget.is_stale(progress) and 0 < share < budget.cooling_from:
            progress.cut, progress.stale_evaluations = share / budget.cooling_from, 0
            yield Notice(
                progress.step, f"step {progress.step:,}: validation no longer improves, so the cool-down begins now"
            )
        elif share < budget.cooling_from or budget.is_over(progress):
            return
        yield from self._results()
        cut, progress.cut = progress.cut, None
        self.checkpointer.save_before_cooldown(progress)
        progress.cut, progress.cooling_since = cut, progress.step
        self.reporter.restart()
        yield from self.checkpointer.take_notices(self.progress.step)

    def _save_last(self) -> Iterator[Event]:
        """Writes what resuming needs."""
        saved = self.checkpointer.save_last(self.progress)
        self.clock.save = False
        yield from self.checkpointer.take_notices(self.progress.step)
        if saved is not None:
            yield saved

    # The beginning and the end.

    def _take_up(self, progress: Progress | None) -> None:
        """Goes on from a state that is back in its place."""
        if progress is not None:
            self.progress = progress
            progress.tokens = progress.tokens or progress.step * self.tokens_per_step  # states once had no count
            if progress.learning_rate not in (None, self.config.learning_rate):  # one that has not gone wrong yet
                progress.rate_factor, progress.times_back = 1.0, 0
            progress.learning_rate = self.config.learning_rate
            self.evaluator.record_duration(progress.evaluation_seconds)
            if self.config.micro_batch_size is None and progress.micro_batch_size is not None:
                self.train_step.micro_batch_size = min(progress.micro_batch_size, len(self.train_step.rows))

    def _compile(self) -> Iterator[Event]:
        """Compiles the forward pass where that is wanted; where it fails, says so and goes on without."""
        pays = self.device.type == "cuda" and not self.world.is_sharded
        if self.config.compile == "off" or (self.config.compile == "auto" and not pays):
            return
        failure = self.train_step.compile()
        self.reporter.restart()
        if failure is not None:
            yield Notice(self.progress.step, f"torch.compile failed, training goes on without it ({failure})")

    def _finish(self, reason: Literal["length", "early stop"]) -> Finished:
        """The last event, with the best weights measured over the validation part."""
        progress = self.progress
        if self.checkpointer.keeps and not (progress.evaluated_best and progress.evaluated_step == progress.step):
            self.checkpointer.load_best()
        measured = self.evaluator.measure_finally()
        finished = Finished(
            step=progress.step,
            reason=reason,
            best_step=progress.best_step,
            validation_loss=measured.loss if measured else None,
            bits_per_byte=measured.bits_per_byte if measured else None,
            validation_tokens=measured.tokens if measured else 0,
            seconds=self.clock.read(progress),
        )
        if self.run is not None:
            try:
                self.run.update(result=Result(**vars(finished)))
            except CheckpointError as error:  # raised once the end is told
                self.checkpointer.failure = self.checkpointer.failure or error
        return finished


def _what_diverged(error: Exception) -> str:
    return str(error) or "the weights are no longer finite"


def _check_fit(model: GPT, corpus: Corpus, context: int) -> None:
    positions, words = model.config.n_positions, model.config.vocab_size
    if context > positions:
        raise ConfigError(f"context_length ({context}) must be at most the model's own ({positions})")
    if corpus.tokenizer.vocab_size > words:
        raise ConfigError(
            f"the corpus's tokenizer has {corpus.tokenizer.vocab_size} words; the model's vocabulary has only {words}"
        )
