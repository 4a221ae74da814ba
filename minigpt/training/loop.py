"""`train()`: training as an iterator of events.

Batches and the noise in them are pure functions of the seed, the step and the row; dropout of the seed, the step and
the micro-batch, for which its generator is seeded. So a resumed run equals an uninterrupted one, and no generator is
saved.
"""

import atexit
import inspect
import weakref
from collections.abc import Generator

from minigpt.config import TrainConfig
from minigpt.data.corpus import Corpus
from minigpt.errors import ConfigError
from minigpt.lora.fine_tuning import check_applied
from minigpt.model.gpt import GPT
from minigpt.storage.run import Run
from minigpt.training.clock import Control
from minigpt.training.events import Event, Notice
from minigpt.training.trainer import Trainer
from minigpt.training.world import World


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
    teacher: GPT | None = None,
    evaluates_whole_text: bool = True,
) -> Generator[Event, None, None]:
    """Trains `model` in place and yields an event for every step, evaluation, sample, save and notice.

    With a `run`, its folder gets the log, the best weights and the last state, and the model ends with the best
    weights. Without one nothing is saved, and the model ends with the last weights. Leaving the loop over the events
    stops training and saves, and so does `control.stop`.

    With `resume`, training continues from the run's last state; on a CPU with a budget of steps or epochs, bit for
    bit. If the cool-down of a `trapezoid` schedule has begun for a shorter budget, training continues from before it,
    unless `cooldown` is 1. `elapsed` is the part of a budget in minutes that is used already, in seconds.

    A `teacher` is a trained model that reads the same tokens: its predictions have the weight `distill_weight` in the
    loss. It may have another shape, not another vocabulary. `minigpt.fit()` trains one first where that pays. The
    teacher's weights are frozen from then on.

    At the end, the best weights are evaluated on the whole validation text, if that takes at most a tenth of a budget
    in minutes; without `evaluates_whole_text`, on `eval_tokens`, as during the run.

    For `lora` and `freeze`, `minigpt.lora.fine_tuning.apply_fine_tuning(model, config)` prepares the model first.

    Seeds torch's global generator, and allows TF32 on CUDA. On a CPU it makes glibc's allocator keep freed memory, in
    the whole process.

    Raises: ConfigError if settings do not fit the model or the corpus, or if all weights are frozen; DeviceError;
    TrainingError if training diverges repeatedly or memory runs out, with the state that is kept; CheckpointError if
    the run is in use or damaged or cannot be written when it is resumed, or at the end if a save failed.
    """
    world = world or World()
    if run is not None:
        run.lock()
    try:
        with world.translate_errors():
            context = config.context_length or model.config.n_positions
            config = config.replace(context_length=context)
            _check_fit(model, corpus, context)
            _check_teacher(teacher, model, config, context)
            check_applied(model, config)
            _check_trainable(model)
            corpus.check_loss_on(config.loss_on)
            trainer = Trainer(
                model, corpus, config, run, resume, control or Control(), world, elapsed, teacher, evaluates_whole_text
            )
    except BaseException:
        if run is not None:
            run.unlock()
        raise
    events = _unlocking(trainer.events(), run)
    next(events)
    _running.add(events)
    return events


def _unlocking(events: Generator[Event, None, None], run: Run | None) -> Generator[Event, None, None]:
    """The events after one that only begins this generator: from then on, closing it unlocks the run."""
    try:
        yield Notice(0, "ready")
        yield from events
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


def _check_fit(model: GPT, corpus: Corpus, context: int) -> None:
    positions, vocab_size = model.config.n_positions, model.config.vocab_size
    if context > positions:
        raise ConfigError(f"context_length ({context}) must be at most the model's n_positions ({positions})")
    if corpus.tokenizer.vocab_size > vocab_size:
        raise ConfigError(
            f"the corpus's tokenizer has {corpus.tokenizer.vocab_size} tokens; the model's vocabulary has only "
            f"{vocab_size}"
        )


def _check_trainable(model: GPT) -> None:
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(
            "the model has no weights to train: all are frozen, as a teacher's are; call model.requires_grad_(True)"
        )


def _check_teacher(teacher: GPT | None, model: GPT, config: TrainConfig, context: int) -> None:
    if teacher is None:
        if config.distill == "on":
            raise ConfigError("distill (on) needs a teacher: give train() one, or use minigpt.fit(), which trains it")
        return
    if teacher.config.vocab_size != model.config.vocab_size:
        raise ConfigError(
            f"the teacher's vocabulary has {teacher.config.vocab_size} tokens; it must have those of the model, "
            f"{model.config.vocab_size}"
        )
    if teacher.config.n_positions < context:
        raise ConfigError(
            f"the teacher's n_positions ({teacher.config.n_positions}) must be at least the context_length ({context})"
        )
    if config.sharding == "on":
        raise ConfigError("a teacher cannot be combined with sharding (on); omit one of them")
