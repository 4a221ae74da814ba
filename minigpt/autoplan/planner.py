"""Plans a run: measures the text and this machine, and chooses the settings that were not given."""

import functools
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import torch

from minigpt import device
from minigpt.autoplan import throughput
from minigpt.autoplan.all_settings import all_settings
from minigpt.autoplan.corpus_stats import CorpusStats
from minigpt.autoplan.measured_plan import MeasuredPlan
from minigpt.autoplan.next_steps import find_suspects
from minigpt.autoplan.overheads import Overheads
from minigpt.autoplan.plan_settings import plan_preset, plan_settings, with_training
from minigpt.autoplan.planned_settings import PlannedSettings
from minigpt.autoplan.shipped_start import measure_shipped
from minigpt.autoplan.throughput import StepTimer
from minigpt.baselines import baselines
from minigpt.baselines.baselines import Baseline, recorded_baselines
from minigpt.config import TrainConfig
from minigpt.data.corpus import Corpus
from minigpt.distillation.planning import TEACHER_SHARE
from minigpt.edges import is_installed
from minigpt.errors import ConfigError
from minigpt.runs.plan import FINE_TUNED, Draft, Plan, Planner
from minigpt.shared_cores.load_monitor import TOLERANCE, OtherPrograms
from minigpt.storage.run_record import RunRecord
from minigpt.training.events import Activity, Notice

# Seconds of the last measurement, of the steps that were chosen: some virtual machines change their speed every few
# seconds.
_LAST_MEASUREMENT, _LONGEST_MEASUREMENT = 1.0, 5.0
_LAST_SHARE = 0.008  # of a budget in minutes
_SLOWER = 1.05  # times as long as in the last measurement: for less, the choices are not made again
_MUCH_COPIED = 0.05  # of the held-out text


class MeasuringPlanner(Planner):
    """Measures the text and this machine, and chooses settings by the rules of `plan_settings`."""

    def plan(self, draft: Draft) -> Generator[Activity | Notice, None, Plan]:
        """Measures and plans the run.

        Raises: ConfigError for settings that cannot be combined, do not fit into memory or leave no time to train.
        """
        return (yield from _measured_plan(draft))

    def baselines(self, record: RunRecord) -> tuple[Baseline, ...]:
        return tuple(recorded_baselines(record))

    def suspects(self, record: RunRecord) -> str:
        assert record.model is not None
        assert record.training is not None
        return find_suspects(record, record.model, record.training, diverged=True)[0]


def _measured_plan(draft: Draft) -> Generator[Activity, None, MeasuredPlan]:
    request, corpus, base, target = draft.request, draft.corpus, draft.base, draft.device
    options = request.options
    began, others = time.perf_counter(), OtherPrograms()
    yield Activity("measuring the baselines on the held-out text")
    measured = tuple(baselines.cheap_baselines(corpus))
    copied = 0.0 if corpus.is_chat_log else baselines.copied_share(corpus)  # a chat log repeats prompts
    yield Activity("measuring this machine")
    stats, memory = CorpusStats.of(corpus, measured), device.free_memory(target)
    if base is None:
        stats = stats.with_new_words(corpus)
    dtypes: tuple[str, ...] = ()
    if target.type == "cpu":
        memory //= draft.local_processes
        if base and draft.local_processes == 1 and all_settings(options.training).base_dtype == "float32":
            memory += 4 * base.model.config.n_parameters  # its weights are there already, and the run uses them
        dtypes = ("float32", "bfloat16") if device.multiplies_bfloat16_faster() else ("float32",)
    elif (dtype := device.resolve_dtype(options.training.dtype, target)) != torch.float16:
        # Recorded by name, so that the run keeps it; not float16, which a CPU lacks.
        options = with_training(options, dtype=str(dtype).removeprefix("torch."))
    measure = functools.partial(throughput.seconds_per_step, device=target, text=corpus, processes=draft.processes)

    trained = base.record.training if base and base.record else None
    base_optimizer = trained.optimizer if trained else "adamw"

    def plan_with(timer: StepTimer) -> PlannedSettings:
        preset = options.preset or (
            FINE_TUNED if base else plan_preset(stats, target.type, memory, options, timer, draft.processes)
        )
        return plan_settings(
            stats, options, device_type=target.type, free_memory=memory, preset=preset,
            base=base.model.config if base else None, base_optimizer=base_optimizer, timer=timer,
            processes=draft.processes,
        )  # fmt: skip

    settings = _measured_settings(plan_with, measure, dtypes)
    if all_settings(settings.training).lora and base is not None:
        _check_adaptable(base.directory, options.base)
    _check_minutes(settings, time.perf_counter() - began)
    if settings.training.minutes is not None:
        settings = settings.with_overheads(
            Overheads.measured(
                settings.model, settings.training, corpus, target.type, settings.seconds_per_step,
                planning=time.perf_counter() - began, base=base.model if base else None,
            )
        )  # fmt: skip
        _check_time_to_train(settings, time.perf_counter() - began)
    shipped = measure_shipped(corpus) if base is None else None
    notes = _notes(settings.training, target, others.cores(), copied, corpus)
    return MeasuredPlan(
        **vars(draft), preset=settings.preset, model=settings.model, training=settings.training, settings=settings,
        shipped=shipped, baselines=measured, notes=(*settings.notes, *notes), seconds=time.perf_counter() - began,
    )  # fmt: skip


def _measured_settings(
    plan_with: Callable[[StepTimer], PlannedSettings], measure: Callable[..., float], dtypes: tuple[str, ...]
) -> PlannedSettings:
    """The settings for the speed of this machine, with the time of a step as measured last.

    They are planned a second time, for the speed that was measured last, if the steps took longer in the first
    measurements: the speed decides on the model, on regularization and on a teacher.
    """
    timer = StepTimer(measure, dtypes)
    settings = plan_with(timer)
    seconds = _LAST_SHARE * 60 * (settings.training.minutes or 0) / (1 if settings.teacher is None else 2)
    again = functools.partial(measure, seconds=min(max(seconds, _LAST_MEASUREMENT), _LONGEST_MEASUREMENT))
    measured = settings.measured_again(again)
    slowdown = settings.slowdown(measured)
    return measured if slowdown <= _SLOWER else plan_with(timer.corrected(slowdown)).measured_again(again)


def _notes(training: TrainConfig, target: torch.device, others: float, copied: float, corpus: Corpus) -> Iterator[str]:
    """Sentences for the user; `others` is the number of cores that other programs used, `copied` the fraction of the
    held-out text that is in the training text too."""
    if copied >= _MUCH_COPIED:
        drop = "--deduplicate drops documents that repeat another, and " if corpus.n_documents > 1 else ""
        advice = f"; {drop}minigpt corpus shows where" if corpus.has_text else ""
        yield (
            f"about {copied:.0%} of the held-out text also occurs in the training text, so the validation loss will "
            f"look better than it is{advice}"
        )
    if training.compiles(target.type, sharded=all_settings(training).sharding == "on"):
        yield "the speed was measured without torch.compile, which may increase it"
    if target.type == "cpu" and is_installed("native"):
        from minigpt.native.compiled import why_unavailable

        if reason := why_unavailable():
            yield f"PyTorch trains the model, slower than with compiled code: {reason}"
    if target.type == "cpu" and others > TOLERANCE:
        yield f"this machine is doing other things: other programs used {others:.1f} cores while the speed was measured"


def _check_adaptable(directory: Path, name: str | None) -> None:
    """Raises ConfigError for a model that an adapter cannot name as its base: an adapter, or one that peft scales."""
    from minigpt.lora.adapter_format import has_scaled_queries
    from minigpt.pretrained.open_model import is_checkpoint
    from minigpt.storage.adapters import is_adapter

    if is_adapter(directory):
        raise ConfigError(f"from ({name}) is an adapter itself; merge it first: minigpt merge {name}")
    if not is_checkpoint(directory) and has_scaled_queries(directory):
        raise ConfigError(
            f"from ({name}) scales its attention differently from GPT-2, and peft would apply that scale to the "
            "adapter too; import it with `minigpt load-gpt2`, and give the import as --from"
        )


def _check_minutes(settings: PlannedSettings, measuring: float) -> None:
    """Raises ConfigError if the budget, or the teacher's part of it, ends before the first step."""
    minutes, step, share, whose = settings.training.minutes, settings.seconds_per_step, 1.0, ""
    if settings.teacher is not None:
        step, share, whose = settings.teacher.seconds_per_step, TEACHER_SHARE, " of the teacher"
    needed = (measuring + step) / share
    if minutes is not None and 60 * minutes < needed:
        raise ConfigError(
            f"minutes ({minutes:g}) are over before the first step{whose}: measuring this machine took "
            f"{measuring:.1f} s, and a step takes {step:.2g} s; give at least {2 * needed / 60:.2g}, or --steps"
        )


def _check_time_to_train(settings: PlannedSettings, measuring: float) -> None:
    """Raises ConfigError if evaluating and saving leave no time of a budget in minutes for training."""
    teacher = settings.teacher
    if settings.training_seconds and (teacher is None or teacher.training_seconds):
        return
    raise ConfigError(
        f"minutes ({settings.training.minutes:g}) leave no time for training: measuring this machine took "
        f"{measuring:.1f} s, and evaluating and saving take the rest; give more, or --steps"
    )
