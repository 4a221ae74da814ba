"""The learning-rate schedule, the parameter groups and the optimizer; it knows no data and no files."""

import math

import torch
from torch import nn

from minigpt.config import TrainConfig


def learning_rate(step: int, progress: float, config: TrainConfig) -> float:
    """The rate of the step that comes after `step` steps: a linear warmup times a shape over the run.

    The warmup lasts `warmup_steps`; where they are None 100 steps, or a tenth of the run if that is over sooner.
    `progress` is the share of the run that is done, from 0 to 1, by steps or by the clock. The shapes fall from the
    peak to `final_learning_rate` x the peak: `cosine` all the way, `trapezoid` linearly over the last `cooldown` of
    the run, `constant` never.
    Source: Loshchilov and Hutter 2017, equation 5 (cosine); Hägele et al. 2024, equation 1 (trapezoid).
    """
    if config.warmup_steps is None:
        warmup = min(1.0, max((step + 1) / 100, progress / 0.1))
    else:
        warmup = min(1.0, (step + 1) / max(1, config.warmup_steps))
    if config.schedule == "cosine":
        height = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    elif config.schedule == "trapezoid":
        height = min(1.0, max(0.0, 1 - progress) / config.cooldown)
    else:
        height = 1.0
    floor = config.final_learning_rate
    return config.learning_rate * warmup * (floor + (1 - floor) * height)


def build_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """AdamW in one fused kernel, with decoupled weight decay on matrices (embeddings too) and none on vectors.

    Source: Kingma and Ba 2015; Loshchilov and Hutter 2019, algorithm 2.
    """
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    fused = matrices[0].device.type in ("cpu", "cuda")
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=(config.beta1, config.beta2), fused=fused)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Gives every parameter group this rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate
