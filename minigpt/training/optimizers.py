"""The parameter groups and the optimizers."""

from typing import Any

import torch

from minigpt.config import TrainConfig
from minigpt.model.gpt import GPT
from minigpt.training.muon import Muon


def build_optimizers(
    model: GPT, config: TrainConfig, dtype: torch.dtype = torch.float32
) -> list[torch.optim.Optimizer]:
    """The optimizers of `config.optimizer`, with decoupled weight decay on matrices and embeddings, none on vectors.

    `adamw` is fused AdamW for all parameters. `muon` is Muon for the matrices inside the blocks, where the queries,
    keys and values of each head are matrices of their own, and AdamW for vectors and embeddings, because each row of an
    embedding is learned separately. `dtype` is that of the run's matrix products; weights and optimizer states are
    float32.
    Source: Kingma and Ba 2015; Loshchilov and Hutter 2019, algorithm 2; `minigpt.training.muon`.
    """
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    vectors = [parameter for _, parameter in named if parameter.dim() < 2]
    embeddings = [parameter for name, parameter in named if parameter.dim() >= 2 and "embedding" in name]
    inner = {name: parameter for name, parameter in named if parameter.dim() >= 2 and "embedding" not in name}
    qkv = [parameter for name, parameter in inner.items() if name.endswith("qkv_proj.weight")]
    others = [parameter for name, parameter in inner.items() if not name.endswith("qkv_proj.weight")]
    uses_muon = config.optimizer == "muon" and bool(inner)
    decay, embedding_decay = config.weight_decay, config.embedding_weight_decay
    adamw_groups: list[dict[str, Any]] = [
        {"params": embeddings, "weight_decay": decay if embedding_decay is None else embedding_decay},
        {"params": vectors, "weight_decay": 0.0},
        {"params": [] if uses_muon else list(inner.values()), "weight_decay": decay},
    ]
    muon_groups: list[dict[str, Any]] = [
        {"params": qkv, "weight_decay": decay, "parts": 3 * model.config.n_head},
        {"params": others, "weight_decay": decay, "parts": 1},
    ]
    betas = (float(config.beta1), float(config.beta2))  # torch refuses one whole number beside a fraction
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(adamw_groups, lr=config.learning_rate, betas=betas, fused=True)
    ]
    if uses_muon:
        bfloat16 = dtype == torch.bfloat16
        optimizers.append(Muon(muon_groups, config.learning_rate, momentum=config.momentum, bfloat16=bfloat16))
    return optimizers
