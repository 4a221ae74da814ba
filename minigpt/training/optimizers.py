"""The parameter groups and the optimizers."""

from typing import Any

import torch

from minigpt.config import TrainConfig
from minigpt.model.gpt import GPT
from minigpt.training.muon import Muon
from minigpt.training.world import World
from minigpt.tricks.spelling import SpellingFeatures
from minigpt.tricks.spelling_updates import SpellingAdamW


def build_optimizers(
    model: GPT,
    config: TrainConfig,
    dtype: torch.dtype = torch.float32,
    world: World | None = None,
    features: SpellingFeatures | None = None,
) -> list[torch.optim.Optimizer]:
    """The optimizers of `config.optimizer`, with decoupled weight decay on matrices and embeddings, none on vectors.

    `adamw` is fused AdamW for all parameters. `muon` is Muon for the matrices inside the blocks, where the queries,
    keys and values of each head are matrices of their own, and AdamW for vectors and embeddings, because each row of an
    embedding is learned separately; with `features`, partly together with those of like spelling. `dtype` is that of
    the run's matrix products; weights and optimizer states are float32. The processes of a `world` share Muon's work
    out.
    Source: Kingma and Ba 2015; Loshchilov and Hutter 2019, algorithm 2; `minigpt.training.muon`.
    """
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    matrices = [(name, parameter) for name, parameter in named if parameter.dim() >= 2]
    embeddings = [parameter for name, parameter in matrices if "embedding" in name]
    inner = [(name, parameter) for name, parameter in matrices if "embedding" not in name]
    embedding_decay = config.embedding_weight_decay
    groups: list[dict[str, Any]] = [
        {"params": embeddings, "weight_decay": config.weight_decay if embedding_decay is None else embedding_decay},
        {"params": [p for _, p in named if p.dim() < 2], "weight_decay": 0.0},
    ]
    if config.optimizer == "adamw":
        groups.append({"params": [p for _, p in inner], "weight_decay": config.weight_decay})
    betas = (float(config.beta1), float(config.beta2))  # torch refuses one whole number beside a fraction
    settings: dict[str, Any] = {"lr": config.learning_rate, "betas": betas, "fused": True}
    adamw: torch.optim.Optimizer
    if features is not None and features.count:
        adamw = SpellingAdamW(groups, model.token_embedding.weight, features, **settings)
    else:
        adamw = torch.optim.AdamW(groups, **settings)
    if config.optimizer == "adamw" or not inner:
        return [adamw]
    qkv = [p for name, p in inner if name.endswith("qkv_proj.weight")]
    others = [p for name, p in inner if not name.endswith("qkv_proj.weight")]
    muon = Muon(
        [{"params": qkv, "parts": 3 * model.config.n_head}, {"params": others}],
        config.learning_rate,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        bfloat16=dtype == torch.bfloat16,
        world=world,
    )
    return [adamw, muon]


def set_learning_rate(optimizers: list[torch.optim.Optimizer], learning_rate: float) -> None:
    """Sets the learning rate of every parameter group."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
