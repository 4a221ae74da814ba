"""`train()`: training as an iterator of events.

Batches and the noise in them are pure functions of the seed, the step and the row; dropout of the seed, the step and
the micro-batch, for which its generator is seeded. So a resumed run equals an uninterrupted one, and no generator is
saved.
"""

import atexit
import inspect
import weakref
from collections.abc import Generator
from typing import Any

import torch

from minigpt.config import TrainConfig
from minigpt.data.corpus import Corpus
from minigpt.device import allow_tf32, resolve_dtype
from minigpt.errors import ConfigError
from minigpt.model.gpt import GPT
from minigpt.storage.run import Run
from minigpt.training.clock import Control
from minigpt.training.events import Event, Notice
from minigpt.training.step_parts import build_step_parts
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
    evaluates_whole_text: bool = True,
    **given: Any,
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
