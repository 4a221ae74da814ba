"""Choosing the faster dtype, on invented machines."""

import pytest

from minigpt.autoplan.throughput import StepTimer, Timing
from minigpt.config import PRESETS, GPTConfig, TrainConfig

NARROW, WIDE = PRESETS["nano"], PRESETS["mini"]
CONFIG = TrainConfig(steps=1, context_length=64)
EITHER = ("float32", "bfloat16")


class Machine:
    """Takes a second per step in float32 and 1 / gain in bfloat16; records the calls."""

    def __init__(self, gains: dict[int, float]) -> None:
        self.gains = gains  # by the model's width
        self.asked: list[tuple[int, str]] = []

    def __call__(self, model: GPTConfig, config: TrainConfig) -> float:
        self.asked.append((model.n_embd, config.dtype))
        return 1 / self.gains[model.n_embd] if config.dtype == "bfloat16" else 1.0


@pytest.mark.parametrize(
    ("gain", "dtype"), [(2.0, "bfloat16"), (1.2, "bfloat16"), (1.05, "float32"), (0.25, "float32")]
)
def test_bfloat16_is_chosen_if_it_is_clearly_faster(gain: float, dtype: str) -> None:
    timing = StepTimer(Machine({128: gain}), EITHER)(NARROW, CONFIG)
    why = f"{gain:.1f} times as fast here as float32"
    if dtype == "float32":
        why = f"bfloat16 is only {gain:.2f} times as fast here"
    assert timing == Timing(1 / gain if dtype == "bfloat16" else 1.0, dtype, why)


@pytest.mark.parametrize("slowed", [0, 1, 2, 3])
def test_another_program_during_one_measurement_does_not_change_the_choice(slowed: int) -> None:
    seconds = [1.0, 1.3, 1.0, 1.3]  # bfloat16 and float32 in turn
    seconds[slowed] *= 2
    timing = StepTimer(lambda *_: seconds.pop(0), EITHER)(NARROW, CONFIG)
    assert (timing.dtype, timing.seconds) == ("bfloat16", 1.0)


def test_each_shape_is_measured_until_bfloat16_is_worthwhile() -> None:
    machine = Machine({128: 0.8, 384: 1.5})
    timer = StepTimer(machine, EITHER)
    assert [timer(model, CONFIG).dtype for model in (NARROW, WIDE)] == ["float32", "bfloat16"]


def test_wider_models_than_one_with_worthwhile_bfloat16_are_not_measured_in_float32() -> None:
    machine = Machine({128: 1.5, 384: 2.0})
    timer = StepTimer(machine, EITHER)
    timer(NARROW, CONFIG)
    assert machine.asked == [(128, "bfloat16"), (128, "float32")]
    timing = timer(WIDE, CONFIG)
    assert (timing.seconds, timing.dtype) == (0.5, "bfloat16")
    assert machine.asked[2:] == [(384, "bfloat16")]
    other = StepTimer(machine, EITHER)
    other(WIDE, CONFIG)
    machine.asked.clear()
    other(NARROW, CONFIG)
    assert machine.asked == [(128, "bfloat16"), (128, "float32")]  # the gain of narrower models is unknown


@pytest.mark.parametrize("dtype", EITHER)
def test_a_given_dtype_is_the_only_one_measured(dtype: str) -> None:
    machine = Machine({128: 9.0})
    timing = StepTimer(machine, EITHER)(NARROW, CONFIG.replace(dtype=dtype))
    assert (timing.dtype, timing.why) == (dtype, "")
    assert machine.asked == [(128, dtype)]


def test_a_cpu_that_emulates_bfloat16_never_runs_it() -> None:
    machine = Machine({128: 9.0})
    timing = StepTimer(machine, ("float32",))(NARROW, CONFIG)
    assert timing == Timing(1.0, "float32", "bfloat16 is no faster on this machine")
    assert machine.asked == [(128, "float32")]
