"""The learning-rate schedule, the parameter groups and the optimizers; it knows no data and no files."""

import math

import torch
from torch import nn

from minigpt.config import TrainConfig
from minigpt.training.muon import Muon


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


def build_optimizers(
    model: nn.Module, config: TrainConfig, dtype: torch.dtype = torch.float32
) -> list[torch.optim.Optimizer]:
    """What `config.optimizer` names, with decoupled weight decay on matrices (embeddings too) and none on vectors.

    `adamw` is fused AdamW for everything; `muon` is Muon for the matrices inside the blocks and AdamW
    for the rest: the embeddings, whose rows are learnt one by one, and the vectors. `dtype` is what the run multiplies
    its matrices in; weights and states are float32.
    Source: Kingma and Ba 2015; Loshchilov and Hutter 2019, algorithm 2; `minigpt.training.muon`.
    """
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    matrices = [(name, parameter) for name, parameter in named if parameter.dim() >= 2]
    inner = [(name, p) for name, p in matrices if "embedding" not in name] if config.optimizer == "muon" else []
    taken = {id(parameter) for _, parameter in inner}
    groups = [
        {"params": [p for _, p in matrices if id(p) not in taken], "weight_decay": config.weight_decay},
        {"params": [p for _, p in named if p.dim() < 2], "weight_decay": 0.0},
    ]
    betas = (config.beta1, config.beta2)
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(groups, lr=config.learning_rate, betas=betas, fused=True)
    ]
    if inner:
        triples = [p for name, p in inner if name.endswith("qkv_proj.weight")]
        others = [p for name, p in inner if not name.endswith("qkv_proj.weight")]
        muon_groups = [{"params": triples, "parts": 3}, {"params": others}]
        decay, momentum = config.weight_decay, config.momentum
        bfloat16, rate = dtype == torch.bfloat16, config.learning_rate
        optimizers.append(Muon(muon_groups, rate, momentum=momentum, weight_decay=decay, bfloat16=bfloat16))
    return optimizers


def set_learning_rate(optimizers: list[torch.optim.Optimizer], rate: float) -> None:
    """Gives every parameter group this rate."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate
