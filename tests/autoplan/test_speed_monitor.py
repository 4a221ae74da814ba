"""What a run says when it trains at another speed than its plan measured."""

from dataclasses import replace

import pytest

from minigpt.autoplan.corpus_stats import CorpusStats
from minigpt.autoplan.planned_settings import PlannedSettings
from minigpt.autoplan.speed_monitor import SpeedChange, SpeedMonitor
from minigpt.config import PRESETS, TrainConfig
from minigpt.distillation.planning import TeacherPlan
from minigpt.training.events import Step

PER_STEP = 0.1  # seconds, as measured
BOOK = CorpusStats(n_tokens=400_000, n_bytes=1_200_000, vocab_size=4096, entropy=2.0)


def planned(**length: float) -> PlannedSettings:
    training = TrainConfig(context_length=64, batch_size=16, **length)  # type: ignore[arg-type]
    return PlannedSettings(
        preset="nano", model=PRESETS["nano"].replace(vocab_size=4096, n_positions=64), training=training, stats=BOOK,
        seconds_per_step=PER_STEP, why_dtype="", memory=0, notes=(), is_usual=True,
        training_seconds=54.0 * length["minutes"] if "minutes" in length else None,
    )  # fmt: skip


def run(settings: PlannedSettings, speeds: list[float], others: float = 0.0) -> list[SpeedChange]:
    """The changes in a run whose steps have these fractions of the measured speed; `others` use so many cores."""
    monitor = SpeedMonitor(settings, lambda: others)
    seconds, changes = 0.0, []
    for number, speed in enumerate(speeds, 1):
        seconds += PER_STEP / speed
        fraction = number / settings.steps if settings.training_seconds is None else seconds / settings.training_seconds
        step = Step(
            step=number, progress=fraction, loss=3.0, learning_rate=0.1, gradient_norm=1.0, tokens=number * 1024,
            seconds=seconds, seconds_left=0.0, tokens_per_second=1024 / PER_STEP * speed,
        )  # fmt: skip
        if (change := monitor.observe(step)) is not None:
            changes.append(change)
    return changes


def test_a_run_at_a_third_of_the_speed_says_so_once_with_what_to_expect_now() -> None:
    settings = planned(minutes=3)
    (change,) = run(settings, [1.0] * 200 + [1 / 3] * 400, others=1.0)
    assert change.step < 260
    assert change.measured == pytest.approx(10_240)
    assert change.tokens_per_second == pytest.approx(10_240 / 3)
    assert change.steps == pytest.approx(200 + (162 - 20) / 0.3, rel=0.01)  # 20 of 162 s at the measured speed
    assert change.expected is not None
    assert settings.expected is not None
    assert change.expected.low > settings.expected.low
    assert change.text.startswith("this machine is doing other things: ")
    assert " tokens/s where 10,240 were measured; now expected: " in change.text
    assert str(change.expected) in change.text


def test_a_run_in_steps_keeps_its_expectation_and_takes_longer() -> None:
    settings = planned(steps=2000)
    (change,) = run(settings, [0.5] * 400, others=1.0)
    assert (change.steps, change.expected) == (2000, settings.expected)
    assert change.seconds_left == pytest.approx((2000 - change.step) * 0.2)


@pytest.mark.parametrize("length", [{"minutes": 3}, {"steps": 2000}])
def test_a_teacher_counts_as_slowed_down_too(length: dict[str, float]) -> None:
    settings = planned(**length)
    seconds = (settings.training_seconds or 200.0) / 2
    settings = replace(settings, teacher=TeacherPlan(training_seconds=seconds, seconds_per_step=0.08))
    (change,) = run(settings, [1 / 3] * 400, others=1.0)
    assert change.expected is not None
    assert settings.expected is not None
    if "minutes" in length:
        assert change.expected.low > 1.05 * settings.expected.low
    else:
        assert change.expected == settings.expected


@pytest.mark.parametrize(
    ("speed", "others", "text"),
    [(0.5, 1.0, "this machine is doing other things"), (0.5, 0.1, "training is slower than measured"),
     (2.0, 1.0, "training is faster than measured")],
)  # fmt: skip
def test_the_cause_is_named_only_if_other_programs_compute(speed: float, others: float, text: str) -> None:
    (change,) = run(planned(minutes=3), [speed] * 400, others)
    assert change.text.startswith(f"{text}: ")


@pytest.mark.parametrize(
    "speeds",
    [[1.0] * 900, [0.85] * 900, [1.1] * 900, [1.0] * 300 + [0.3] * 12 + [1.0] * 300, [0.02, 0.1, 0.5] + [1.0] * 900],
    ids=["as measured", "a little slower", "a little faster", "slow for a moment", "warming up"],
)
def test_a_moment_and_a_small_difference_are_not_worth_a_word(speeds: list[float]) -> None:
    assert run(planned(minutes=3), speeds, others=1.0) == []


def test_slower_and_faster_stretches_in_turn_are_no_change_and_a_change_after_them_is_one() -> None:
    in_turn = [each for _ in range(4) for each in [0.6] * 28 + [1.5] * 70]
    assert run(planned(minutes=3), in_turn, others=1.0) == []
    (change,) = run(planned(minutes=3), in_turn + [0.6] * 200, others=1.0)
    assert change.tokens_per_second == pytest.approx(0.6 * 10_240)


def test_a_short_run_says_nothing() -> None:
    assert run(planned(steps=8), [0.5] * 8) == []
