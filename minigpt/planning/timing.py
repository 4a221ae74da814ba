"""How long an optimizer step takes here, and in which arithmetic it is faster; it knows no torch and plans nothing."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

from minigpt.config import GPTConfig, TrainConfig

Measure = Callable[[GPTConfig, TrainConfig], float]
"""Seconds that one optimizer step of such a model takes on this machine."""

_WORTHWHILE = 1.1  # times as fast as float32: for less, bfloat16 is not worth its rounding


@dataclass(frozen=True)
class Timing:
    """Seconds of an optimizer step, the dtype they were measured in, and why that one, empty where it was given."""

    seconds: float
    dtype: str
    why: str = ""


class StepTimer:
    """Measures every shape once. Where the dtype is `auto` it chooses one of `dtypes`, the first of which is float32;
    where there are none, as on a GPU, `auto` stays what it is.

    Whether bfloat16 is faster depends on the machine and on the shape, so both are measured. What it gains grows with
    the matrices: models at least as wide as one that it paid for are measured in bfloat16 alone.
    """

    def __init__(self, measure: Measure, dtypes: tuple[str, ...] = ()) -> None:
        self.measure, self.dtypes = measure, dtypes
        self.pays_from = math.inf  # features
        self._time = functools.cache(self._measured)

    def __call__(self, model: GPTConfig, config: TrainConfig) -> Timing:
        """The seconds of a step of such a model, in the dtype that is given or, by what was measured, chosen."""
        return self._time(model, config)

    def _measured(self, model: GPTConfig, config: TrainConfig) -> Timing:
        if config.dtype != "auto" or not self.dtypes:
            return Timing(self.measure(model, config), config.dtype)
        if "bfloat16" not in self.dtypes:
            exact = self.measure(model, config.replace(dtype="float32"))
            return Timing(exact, "float32", "this machine multiplies bfloat16 no faster")
        coarse = self.measure(model, config.replace(dtype="bfloat16"))
        if model.n_embd >= self.pays_from:
            return Timing(coarse, "bfloat16", "faster here than float32, as measured on a model no wider")
        exact = self.measure(model, config.replace(dtype="float32"))
        if exact < _WORTHWHILE * coarse:
            return Timing(exact, "float32", f"bfloat16 is only {exact / coarse:.2f} times as fast here")
        self.pays_from = model.n_embd
        return Timing(coarse, "bfloat16", f"{exact / coarse:.1f} times as fast here as float32")
