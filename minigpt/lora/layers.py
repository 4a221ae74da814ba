"""LoRA: two small trainable matrices beside each frozen matrix of the blocks.

The model stays a GPT: only linear layers in its blocks are replaced. Its base weights are frozen, and what training
changes is a few megabytes.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.lora.frozen_linear import FrozenLinear
from minigpt.model.gpt import GPT

_SUBLAYERS = {"qkv_proj": "attention", "out_proj": "attention", "up_proj": "mlp", "down_proj": "mlp"}


@dataclass(frozen=True, kw_only=True)
class LoRA:
    """The shape of an adapter: which matrices of which blocks it changes, by matrices of which rank.

    `targets` are names of linear layers, such as "qkv_proj"; the blocks below `first_block` have no adapter. With
    `embedding` the token embedding, which is also the output head, is trained too, all of it.
    """

    rank: int
    alpha: float
    dropout: float
    targets: tuple[str, ...]
    first_block: int = 0
    embedding: bool = False

    @property
    def scale(self) -> float:
        """The factor of the product of the two matrices."""
        return self.alpha / self.rank


class LoRALinear(nn.Module):
    """A frozen linear layer plus a trained product of rank r: (..., in) -> (..., out).

    y = W x + bias + scale * B A dropout(x). B starts at zero, so that training starts from the base model.
    Source: Hu et al. 2022, "LoRA: Low-Rank Adaptation of Large Language Models", equation 3 and section 4.1.
    """

    def __init__(self, base: nn.Linear | FrozenLinear, lora: LoRA) -> None:
        super().__init__()
        self.base = base
        self.lora = lora
        self.dropout = nn.Dropout(lora.dropout)
        device = base.weight.device
        self.lora_a = nn.Parameter(torch.empty(lora.rank, base.in_features, device=device))  # (r, in)
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, lora.rank, device=device))  # (out, r)
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))  # as in the authors' code and in peft

    def forward(self, x: Tensor) -> Tensor:
        low = F.linear(self.dropout(x), self.lora_a)  # (..., r)
        y = self.base(x)  # (..., out)
        # One operation, which keeps neither summand.
        return torch.addmm(y.flatten(0, -2), low.flatten(0, -2), self.lora_b.t(), alpha=self.lora.scale).view(y.shape)


def add_lora(model: GPT, lora: LoRA) -> None:
    """Freezes the model and gives its target layers an adapter, in place. A is drawn from torch's global generator."""
    model.requires_grad_(False)
    model.token_embedding.requires_grad_(lora.embedding)
    for block in list(model.blocks)[lora.first_block :]:
        for target in lora.targets:
            sublayer = block.get_submodule(_SUBLAYERS[target])
            setattr(sublayer, target, LoRALinear(getattr(sublayer, target), lora).train(model.training))


def lora_layers(model: GPT) -> Iterator[tuple[str, LoRALinear]]:
    """Every layer with an adapter, by its name, such as "blocks.0.attention.qkv_proj"."""
    for name, module in model.named_modules():
        if isinstance(module, LoRALinear):
            yield name, module


def lora_of(model: GPT) -> LoRA | None:
    """The shape of the model's adapter; None for a model without one."""
    return next((layer.lora for _, layer in lora_layers(model)), None)
