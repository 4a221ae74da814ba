"""When a plan trains a teacher first, and what it then expects of the time."""

import sys
from dataclasses import replace
from typing import Any

import pytest

from minigpt.autoplan.corpus_stats import CorpusStats
from minigpt.autoplan.overheads import Overheads
from minigpt.autoplan.plan_settings import plan_preset, plan_settings
from minigpt.autoplan.planned_settings import PlannedSettings
from minigpt.autoplan.throughput import StepTimer
from minigpt.config import GPTConfig, TrainConfig
from minigpt.distillation.planning import TEACHER_SHARE, pays, relative_loss_with_teacher, teacher_settings
from minigpt.distillation.settings import DistillationSettings
from minigpt.distributed.settings import DistributedSettings
from minigpt.errors import ConfigError
from minigpt.run_options import RunOptions
from minigpt.tricks.settings import TrickSettings

BOOK = CorpusStats(n_tokens=400_000, n_bytes=1_200_000, vocab_size=2048, entropy=2.3)
STEP, TAUGHT_STEP = 0.1, 0.14  # seconds


def seconds_per_step(_: GPTConfig, config: TrainConfig) -> float:
    return TAUGHT_STEP if DistillationSettings.of(config).distill == "on" else STEP


def planned(stats: CorpusStats = BOOK, free_memory: int = sys.maxsize, **given: Any) -> PlannedSettings:
    processes = given.pop("processes", 1)
    return plan_settings(
        stats, RunOptions.of(given), device_type="cpu", free_memory=free_memory, preset="nano",
        timer=StepTimer(seconds_per_step), processes=processes,
    )  # fmt: skip


@pytest.mark.parametrize(("minutes", "distill"), [(1, "off"), (2, "off"), (20, "on"), (60, "on")])
def test_minutes_that_are_enough_for_many_passes_over_the_text_get_a_teacher(minutes: float, distill: str) -> None:
    settings = planned(minutes=minutes)
    assert DistillationSettings.of(settings.training).distill == distill
    assert (settings.teacher is not None) == (distill == "on")
    assert settings.is_usual


@pytest.mark.parametrize(
    ("tokens", "passes", "expected"), [(3e6, 12, True), (3e6, 11.9, False), (2.5e6, 40, True), (2.4e6, 40, False)]
)
def test_a_teacher_needs_twelve_passes_and_two_and_a_half_million_tokens(
    tokens: float, passes: float, expected: bool
) -> None:
    assert pays(TrainConfig(minutes=10), tokens, passes) is expected


@pytest.mark.parametrize(("n_tokens", "minutes", "distill"), [(60_000, 2, "off"), (60_000, 20, "on")])
def test_many_passes_over_few_tokens_get_no_teacher(n_tokens: int, minutes: float, distill: str) -> None:
    settings = planned(replace(BOOK, n_tokens=n_tokens, n_bytes=3 * n_tokens), minutes=minutes)
    assert settings.tokens_without_teacher / n_tokens > 12
    assert DistillationSettings.of(settings.training).distill == distill


@pytest.mark.parametrize("given", [{"steps": 100_000}, {"epochs": 50}, {"minutes": 30, "distill": "off"}])
def test_a_length_in_steps_or_epochs_gets_no_teacher_unless_it_is_asked_for(given: dict[str, Any]) -> None:
    assert DistillationSettings.of(planned(**given).training).distill == "off"
    if "distill" not in given:
        assert DistillationSettings.of(planned(**given, distill="on").training).distill == "on"


def test_a_teacher_takes_a_part_of_the_minutes_and_the_model_s_steps_take_longer() -> None:
    alone, taught = planned(minutes=10, distill="off"), planned(minutes=10, distill="on")
    assert taught.teacher is not None
    assert taught.seconds == pytest.approx(alone.seconds)
    assert taught.teacher.training_seconds == pytest.approx(TEACHER_SHARE * alone.seconds)
    assert taught.teacher.steps * STEP + taught.steps * TAUGHT_STEP == pytest.approx(alone.seconds)
    assert taught.tokens_without_teacher == pytest.approx(alone.tokens_seen)
    assert alone.expected is not None
    assert taught.expected is not None
    gain = relative_loss_with_teacher(alone.tokens_seen / BOOK.n_tokens, 0.5)
    assert gain < 1
    assert taught.expected.low == pytest.approx(gain * alone.expected.low)
    assert taught.relative_loss == pytest.approx(gain * alone.relative_loss)


@pytest.mark.parametrize(("passes", "expected"), [(2, 1.0), (12, 1.0), (15.5, 0.985), (19, 0.97), (60, 0.97)])
def test_a_teacher_gains_more_the_more_often_the_text_is_read(passes: float, expected: float) -> None:
    assert relative_loss_with_teacher(passes, 0.3) == pytest.approx(expected)
    assert relative_loss_with_teacher(passes, 0.2) == 1  # too small a model to memorize the text


@pytest.mark.parametrize(("slowness", "preset"), [(1.0, "nano"), (1.3, "nano"), (1.8, "micro"), (6.0, "nano")])
def test_a_small_model_with_a_teacher_is_chosen_where_it_reads_the_text_often(slowness: float, preset: str) -> None:
    """Don Quixote, with the steps of an Intel Xeon with AMX, in which the small model would read it 23 times."""
    novel = CorpusStats(n_tokens=458_566, n_bytes=2_060_000, vocab_size=16_091, entropy=1.87)

    def seconds(model: GPTConfig, config: TrainConfig) -> float:
        step = {128: 0.049, 192: 0.109}.get(model.n_embd, 1.0)
        return slowness * step * (1.35 if DistillationSettings.of(config).distill == "on" else 1)

    options = RunOptions.of({"minutes": 10})
    assert plan_preset(novel, "cpu", sys.maxsize, options, StepTimer(seconds)) == preset


def test_a_length_in_steps_is_that_of_the_model_and_the_teacher_takes_half_as_many_before() -> None:
    settings = planned(steps=100, distill="on")
    assert settings.teacher is not None
    assert (settings.steps, settings.teacher.steps) == (100, pytest.approx(50))
    assert settings.seconds == pytest.approx(100 * TAUGHT_STEP + 50 * STEP)
    assert planned(epochs=2, distill="on").teacher.steps == pytest.approx(planned(epochs=1).steps)  # type: ignore[union-attr]


def test_what_is_not_training_is_a_part_of_each_phase() -> None:
    config = TrainConfig(minutes=10, context_length=64)
    overheads = Overheads(start=10, evaluation=1, saving=1, sample=1, index=2, final=5)
    settings = planned(minutes=10, distill="on").with_overheads(overheads)
    assert settings.teacher is not None
    first = 60 * (teacher_settings(config).minutes or 0)
    assert 0.7 * (first - 10) < settings.teacher.training_seconds < first - 10
    assert 0.8 * (600 - first) < settings.training_seconds < 600 - first  # type: ignore[operator]


def test_the_final_evaluation_of_a_teacher_is_like_the_others() -> None:
    short, long = (
        planned(minutes=10, distill="on").with_overheads(
            Overheads(start=10, evaluation=1, saving=1, sample=1, index=2, final=final)
        )
        for final in (1, 31)
    )
    assert short.teacher is not None
    assert long.teacher is not None
    assert short.teacher.training_seconds == long.teacher.training_seconds
    assert short.training_seconds - long.training_seconds > 25  # type: ignore[operator]


@pytest.mark.parametrize(("again", "expected"), [(1.1, 1.05), (0.9, 0.95), (2.0, 1.0), (0.5, 0.5)])
def test_both_times_of_the_same_steps_count_unless_one_was_disturbed(again: float, expected: float) -> None:
    settings = planned(steps=100, distill="off")
    assert not TrickSettings.of(settings.training).bpe_dropout
    measured = settings.measured_again(lambda model, config: again * seconds_per_step(model, config))
    assert measured.seconds_per_step == pytest.approx(expected * STEP)


def test_a_teacher_is_counted_in_the_memory_and_given_up_where_it_does_not_fit() -> None:
    alone, taught = planned(minutes=10, distill="off"), planned(minutes=10, distill="on")
    assert taught.memory > alone.memory + 4 * alone.model.n_parameters
    least = planned(minutes=20, distill="off", micro_batch_size=1, checkpoint_activations="on").memory
    assert DistillationSettings.of(planned(minutes=20, free_memory=least).training).distill == "off"
    with pytest.raises(ConfigError, match="takes about"):
        planned(minutes=20, free_memory=least, distill="on")


def test_a_teacher_is_never_sharded_as_its_model_is_not() -> None:
    config = TrainConfig(minutes=20, distill="on")
    assert (DistributedSettings.of(config).sharding, config.unsharded_for) == ("auto", "distill (on)")
    assert DistributedSettings.of(teacher_settings(config)).sharding == "off"


def test_the_teacher_has_another_seed_and_no_samples() -> None:
    config = TrainConfig(minutes=20, seed=2**63 - 1)
    assert (teacher_settings(config).seed, teacher_settings(config).sample_every) == (0, 0)
    assert teacher_settings(config.replace(minutes=None, epochs=3)).epochs == pytest.approx(1.5)
    assert teacher_settings(config.replace(minutes=None, steps=1)).steps == 1
    longer = planned(replace(BOOK, n_tokens=4_000_000, n_bytes=12_000_000), minutes=20)
    assert DistillationSettings.of(longer.training).distill == "off"
