"""The learning rate and the BPE-dropout of each step."""

import math

from minigpt.config import TrainConfig


def learning_rate(step: int, progress: float, config: TrainConfig) -> float:
    """The learning rate of the step after `step` steps: a linear warmup times the schedule.

    The warmup lasts `warmup_steps`; if they are None, 100 steps or a tenth of the run, whichever ends first.
    `progress` is the part of the run that is done, from 0 to 1. The schedules fall from the peak to
    `final_learning_rate` x the peak: `cosine` over the whole run, `trapezoid` linearly over its last `cooldown`,
    `constant` never.
    Source: Loshchilov and Hutter 2017, equation 5 (cosine); Hägele et al. 2024, equation 1 (trapezoid).
    """
    if config.warmup_steps is None:
        warmup = min(1.0, max((step + 1) / 100, progress / 0.1))
    else:
        warmup = min(1.0, (step + 1) / max(1, config.warmup_steps))
    floor = config.final_learning_rate
    return config.learning_rate * warmup * (floor + (1 - floor) * _height(progress, config))


def bpe_dropout(progress: float, config: TrainConfig) -> float:
    """The BPE-dropout of the next step: it falls to 0 as the schedule of the learning rate does.

    So the model learns last from texts cut as those that it will read. `progress` is the part of the run that is done.
    """
    return config.bpe_dropout * _height(progress, config)


def _height(progress: float, config: TrainConfig) -> float:
    """How high the schedule is, from 1 to 0."""
    if config.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    if config.schedule == "trapezoid":
        return min(1.0, max(0.0, 1 - progress) / config.cooldown)
    return 1.0
