"""Chooses the settings that the user did not give, from a measurement of this machine and a scaling law.

The rules come from benchmarks/scaling.py and docs/experiments.md, measured on a CPU up to 2.7 million parameters in
the blocks; for larger models and for GPUs they are extrapolated.
"""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from minigpt.autoplan.all_settings import all_settings
from minigpt.autoplan.corpus_stats import CorpusStats
from minigpt.autoplan.defaults import against_overfitting, eval_tokens, optimization_settings
from minigpt.autoplan.memory_fit import TooLargeError, fit_memory
from minigpt.autoplan.planned_settings import PlannedSettings
from minigpt.autoplan.throughput import StepTimer
from minigpt.config import PRESETS, GPTConfig, TrainConfig, preset_config
from minigpt.distillation.planning import pays
from minigpt.errors import ConfigError, MinigptError
from minigpt.lora.fine_tuning import check_fine_tuning
from minigpt.run_options import RunOptions

DEFAULT_MINUTES = 5.0
_MEASURING = 0.1  # the most that measuring takes of a budget in minutes, as a fraction
MAX_PARAMETERS = 2  # in the blocks, per byte of text
CANDIDATES = ("nano", "micro", "mini", "small", "gpt2", "gpt2-medium")  # from the smallest up
_FINE_TUNING_CONTEXT = 256
_SHORT_CONTEXT, _SHORT_RUN = 64, 1_500_000  # tokens: in so short a run, twice as many sequences teach more
_CHAT_CONTEXTS = (128, 512)  # tokens: the shortest and the longest context that is chosen for conversations
_CHAT_SEQUENCES = 2000  # in a run: with half as many of twice the length, a chat log was learned 2 % worse
_TINY = 20_000  # tokens: on fewer a small model trains for seconds, so the length is in steps
_MIN_BYTES = 300_000  # of text, and of text learned from: for less, the smallest model is chosen
LEARNING = {  # the options that change what a model learns
    name
    for settings in (GPTConfig, TrainConfig)
    for name, field in settings.__dataclass_fields__.items()
    if field.metadata["group"] in ("Model", "Batch", "Optimization", "Fine-tuning")
} - {"micro_batch_size", "distill"} | {"tokenizer", "from"}
_TRAINING = 0.85  # of a budget in minutes, the part that steps take, until the rest is measured


def plan_preset(
    stats: CorpusStats, device_type: str, free_memory: int, options: RunOptions, timer: StepTimer, processes: int = 1
) -> str:
    """The preset with the fewest expected bits per byte within the budget.

    Presets are measured from the smallest up. The search ends at a preset that without a teacher is expected to be
    worse than the one before, has more than 2 parameters per byte of text (with 2.6 it memorized the text), needs
    longer than 5 minutes for a budget in steps, or cannot be planned, mostly for lack of memory. It also ends after a
    tenth of a budget in minutes.
    """
    best, least, least_alone, began = "", math.inf, math.inf, time.perf_counter()
    for name in CANDIDATES:
        if best and PRESETS[name].n_inner_parameters > MAX_PARAMETERS * stats.n_bytes:
            break
        try:
            planned = plan_settings(
                stats, options, device_type=device_type, free_memory=free_memory, preset=name, timer=timer,
                processes=processes,
            )  # fmt: skip
        except MinigptError:  # for the smallest preset, planning the run raises it again
            break
        too_slow = planned.training.minutes is None and planned.seconds > 60 * DEFAULT_MINUTES
        too_short = min(planned.tokens_without_teacher / stats.n_tokens, 1) * stats.n_bytes < _MIN_BYTES
        alone = planned.relative_loss_without_teacher
        if best and (alone >= least_alone or too_slow or too_short):
            break
        least_alone = alone
        if planned.relative_loss < least:
            best, least = name, planned.relative_loss
        if too_short:
            break
        if time.perf_counter() - began > _MEASURING * 60 * (planned.training.minutes or math.inf):
            break
    return best or CANDIDATES[0]


def plan_settings(
    stats: CorpusStats,
    options: RunOptions,
    *,
    device_type: str,
    free_memory: int,
    preset: str,
    base: GPTConfig | None = None,
    base_optimizer: str = "adamw",
    timer: StepTimer,
    processes: int = 1,
) -> PlannedSettings:
    """The settings that the user gave, and the choices of the rules for all others.

    `free_memory`, in bytes per process, limits the micro-batch. `base` is the shape of a model to fine-tune, trained
    with the `base_optimizer`; `processes` share every batch. A plan that does not fit into memory, is a short run,
    takes long for a tiny text or pays for a teacher is made again with options that say so.
    Raises: ConfigError for options that cannot be combined or do not fit into memory; what `timer` raises.
    """
    plan_with = partial(
        plan_settings, stats, device_type=device_type, free_memory=free_memory, preset=preset, base=base,
        base_optimizer=base_optimizer, timer=timer, processes=processes,
    )  # the same run with other options  # fmt: skip
    notes, asked = list[str](), all_settings(options.training)
    model, context = _shape(stats, options, preset, base, notes)
    tuned_with = None if base is None else base_optimizer
    chosen = optimization_settings(options, model, context, stats, device_type, processes, tuned_with)
    if not {"steps", "epochs", "minutes"} & options.given:
        chosen |= {"steps": 300} if stats.n_tokens < _TINY else {"minutes": DEFAULT_MINUTES}
    config = options.training.replace(context_length=context, **chosen)
    may_shorten = base is None and "context_length" not in options.given and context > _SHORT_CONTEXT
    _check_batch(config, options, stats, _SHORT_CONTEXT if may_shorten else context, processes)
    _check_teachable(config, options, base)
    distills = all_settings(config).distill == "on"
    try:
        config, memory = fit_memory(
            model, config, free_memory, device_type, processes, notes, fine_tuning=base is not None
        )
    except TooLargeError as error:
        adapter = _smaller_adapter(error, free_memory, config, options, plan_with, fine_tuning=base is not None)
        if adapter is None:
            raise
        return adapter
    timing = timer(model, config.replace(distill="off"))
    config = config.replace(dtype=timing.dtype, distill="on" if distills else "off")
    planned = PlannedSettings(
        preset=preset,
        model=model,
        training=config,
        stats=stats,
        seconds_per_step=timing.seconds,
        why_dtype=timing.why,
        memory=memory,
        notes=tuple(notes),
        training_seconds=None if config.minutes is None else _TRAINING * 60 * config.minutes,
        is_usual=base is None and not options.given & LEARNING,
    )
    seen = planned.tokens_seen
    short = max(_SHORT_CONTEXT, _chat_context(stats, seen))
    if may_shorten and seen < _SHORT_RUN and context > short:
        return replace(plan_with(with_training(options, context_length=short)), is_usual=planned.is_usual)
    _check_batch(config, options, stats, context, processes)
    if "steps" in chosen and planned.seconds > 60 * DEFAULT_MINUTES:
        return plan_with(with_training(options, minutes=DEFAULT_MINUTES))
    if distills:
        distilled = replace(planned, seconds_per_step=timer(model, config).seconds)
        planned = distilled.with_teacher(timing.seconds)
        seen = planned.tokens_seen
    elif base is None and asked.distill == "auto" and pays(config, seen, seen / stats.n_tokens):
        try:
            distilled = plan_with(with_training(options, distill="on"))
        except TooLargeError:  # with a teacher beside the model
            pass
        else:
            return replace(distilled, is_usual=planned.is_usual)
    if not distills and "distill_weight" in options.given:
        raise ConfigError(
            f"distill_weight ({asked.distill_weight:g}) needs a teacher, and none is trained here; give --distill on"
        )
    return _against_overfitting(planned, options, stats, seen, plan_with, fine_tuning=base is not None)


def with_training(options: RunOptions, **settings: Any) -> RunOptions:
    """The options with these training settings, as if they had been given too."""
    return replace(options, training=options.training.replace(**settings), given=options.given | frozenset(settings))


def _shape(
    stats: CorpusStats, options: RunOptions, preset: str, base: GPTConfig | None, notes: list[str]
) -> tuple[GPTConfig, int]:
    """The model, of the preset or of the model to fine-tune, and the context length.

    Raises: ConfigError for options that do not fit them.
    """
    model = (base or preset_config(preset).replace(vocab_size=stats.vocab_size)).replace(**options.shape)
    context = _context(model, stats, options, notes, fine_tuning=base is not None)
    if base is None:
        model = model.replace(n_positions=context)
    model.check_positions()
    dropout = all_settings(options.training).bpe_dropout
    if dropout and not stats.has_merges:
        raise ConfigError(
            f"bpe_dropout ({dropout:g}) needs a tokenizer that merges bytes, bpe:N or gpt2, "
            "and this one does not; give 0"
        )
    check_fine_tuning(model, options.training)
    return model, context


def _against_overfitting(
    planned: PlannedSettings,
    options: RunOptions,
    stats: CorpusStats,
    seen: float,
    plan_with: Callable[[RunOptions], PlannedSettings],
    *,
    fine_tuning: bool,
) -> PlannedSettings:
    """The plan with the evaluations and, of a new model, the regularization for training on `seen` tokens."""
    model, config = planned.model, planned.training
    if "eval_tokens" not in options.given:
        config = config.replace(eval_tokens=eval_tokens(seen, model, config))
    if fine_tuning:
        return replace(planned, training=config)
    model, config = against_overfitting(model, config, options, stats, seen)
    if model.dropout != planned.model.dropout:  # dropout keeps more activations in memory
        shape = {**options.shape, "dropout": model.dropout}
        with_dropout = replace(options, shape=shape, given=options.given | {"dropout"})
        return replace(plan_with(with_dropout), is_usual=planned.is_usual)
    return replace(planned, model=model, training=config)


def _check_teachable(config: TrainConfig, options: RunOptions, base: GPTConfig | None) -> None:
    if all_settings(config).distill == "on" and base is not None:
        raise ConfigError(
            f"distill (on) cannot be combined with --from ({options.base}): only a new model learns from a teacher; "
            "omit one of them"
        )


def _check_batch(config: TrainConfig, options: RunOptions, stats: CorpusStats, context: int, processes: int) -> None:
    """Raises: ConfigError for a batch that is larger than the training text, or has too few sequences for `processes`,
    with this context length."""
    config = config.replace(context_length=context)
    config.check_processes(processes)
    fitting = max(1, stats.n_tokens // context)
    if {"batch_size", "batch_tokens"} & options.given and config.sequences_per_step > fitting:
        most = f"--batch-size of at most {fitting}"
        if config.batch_tokens is not None:
            most = f"--batch-tokens of at most {fitting * context}"
        raise ConfigError(
            f"a batch of {config.sequences_per_step} sequences of {context} tokens is larger than the training text "
            f"({stats.n_tokens} tokens); give a {most}"
        )


def _smaller_adapter(
    error: TooLargeError,
    free_memory: int,
    config: TrainConfig,
    options: RunOptions,
    plan_with: Callable[[RunOptions], PlannedSettings],
    *,
    fine_tuning: bool,
) -> PlannedSettings | None:
    """The plan of an adapter that takes less memory than `config`, which failed with `error`.

    It is None if the user's options allow no such adapter.
    """
    asked = all_settings(options.training)
    if all_settings(config).lora_embedding and "lora_embedding" not in options.given:
        planned = plan_with(with_training(options, lora_embedding=False))
        why = "the token embedding is not trained with the adapter, to fit into memory (--lora-embedding)"
    elif (
        fine_tuning
        and asked.lora is None
        and not asked.freeze
        and asked.sharding != "on"  # which no adapter can be combined with
    ):
        planned = plan_with(with_training(options, lora=True))
        rank = all_settings(planned.training).lora_rank
        why = (
            f"only an adapter of rank {rank} is trained (--lora): training all weights takes "
            f"about {error.needed / 1e9:.1f} GB, and {free_memory / 1e9:.1f} GB are free"
        )
    else:
        return None
    return replace(planned, notes=(why, *planned.notes))


def _chat_context(stats: CorpusStats, seen: float = math.inf) -> int:
    """The context for a chat log, a power of two; 0 for other texts.

    It holds a long conversation, unless a run that reads `seen` tokens would read too few sequences.
    """
    if not stats.conversation:
        return 0
    shortest, context = _CHAT_CONTEXTS
    while context > shortest and (context // 2 >= stats.conversation or context * _CHAT_SEQUENCES > seen):
        context //= 2
    return context


def _context(model: GPTConfig, stats: CorpusStats, options: RunOptions, notes: list[str], *, fine_tuning: bool) -> int:
    """The context length: as given, else the model's or what conversations need, but not longer than the text."""
    n_tokens, chat = stats.n_tokens, _chat_context(stats)
    usual = min(model.n_positions, max(_FINE_TUNING_CONTEXT, chat)) if fine_tuning else max(model.n_positions, chat)
    wanted = options.training.context_length or usual
    context = min(wanted, max(1, n_tokens - 1))
    if context < wanted:
        notes.append(f"context length {context} instead of {wanted}: the training text has only {n_tokens} tokens")
    if fine_tuning and context > model.n_positions:
        raise ConfigError(f"context_length ({context}) must be at most the model's own ({model.n_positions})")
    return context
