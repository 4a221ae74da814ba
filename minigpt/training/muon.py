"""Muon: momentum whose update is made orthogonal, for the matrices inside a model; it knows nothing of AdamW or rates.

A gradient matrix is mostly a few strong directions. Muon keeps its directions and makes them all equally strong: with
the momentum M = U S V^T it steps along U V^T, so that rare directions learn as fast as common ones.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from minigpt.training.distributed import distribute_like, full_tensor, to_local

# Each row is a polynomial a X + b X X^T X + c (X X^T)^2 X, three matrix products. Together they lift small singular
# values 134-fold: what lifts them less learns less.
_POLYNOMIALS = ((8.28721, -23.59589, 17.30039), (4.10706, -2.94785, 0.54484), (3.94869, -2.90890, 0.55182))
_SAFETY = 1.02  # singular values begin 2 % below 1: beyond it, where bfloat16 rounds to, the polynomials run away
_SCALE = 0.15  # singular values come out at 1.3 on average, so that updates are 0.2 of the rate
_AT_ONCE = 2**26  # numbers orthogonalized together: they fill a GPU, and are little beside a model that has more


def orthogonalize(matrices: Tensor, *, bfloat16: bool = False) -> Tensor:
    """Matrices of (almost) the same directions with singular values about equal: most come out between 0.4 and 1.9.

    First, of X lying on its longer side, row i is divided by the root of the sum over j of |X X^T|_ij: no singular
    value is above 1 then, and most are far higher than if all of X were divided by its norm. Then each polynomial lifts
    the small ones towards the large. `bfloat16` is in bfloat16, whose precision is enough; else in the dtype given.
    Shapes: (n, rows, columns) -> (n, rows, columns).
    Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks" (the iteration); Amsel et al.
    2025, "The Polar Express", algorithm 1 (the polynomials: its first three); Boissin et al. 2025, "Turbo-Muon",
    after Prach and Lampert 2022, "Almost-orthogonal Lipschitz layers", theorem 1 (the rows).
    """
    x = matrices.bfloat16() if bfloat16 else matrices
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x  # so that X X^T is the smaller of the two products
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)  # out of reach of under- and overflow
    gram = x @ x.mT  # (n, rows, rows)
    scale = gram.abs().sum(2, keepdim=True).clamp(min=1e-12).rsqrt() / _SAFETY  # (n, rows, 1)
    x = x * scale
    for number, (a, b, c) in enumerate(_POLYNOMIALS):
        gram = x @ x.mT if number else gram * scale * scale.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(matrices.dtype)


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalized, with decoupled weight decay; matrices of one shape go through it together.

    An update's root mean square is 0.2 of the rate whatever the matrix's shape, which is what AdamW's comes to: one
    rate serves both. A group's `parts` cuts its matrices into so many along their rows first: queries, keys and values
    are three matrices. `bfloat16` is for machines that multiply bfloat16 faster.
    Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks"; Liu et al. 2025, "Muon is
    scalable for LLM training", equation 4 (the scale).
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        momentum: float,
        weight_decay: float = 0.0,
        parts: int = 1,
        bfloat16: bool = False,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "parts": parts})
        self.bfloat16 = bfloat16

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """One step for every matrix that has a gradient, in whose place it leaves the momentum it stepped by."""
        same: defaultdict[tuple[Any, ...], list[Tensor]] = defaultdict(list)
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                state = self.state[matrix]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(matrix)
                state["momentum"].lerp_(matrix.grad, 1 - group["momentum"])
                matrix.grad.lerp_(state["momentum"], group["momentum"])  # Nesterov's
                matrix.mul_(1 - group["lr"] * group["weight_decay"])
                same[(matrix.shape, group["parts"], group["lr"])].append(matrix)
        for (shape, parts, rate), matrices in same.items():
            at_once = max(1, _AT_ONCE // shape.numel())
            for start in range(0, len(matrices), at_once):
                _step_alike(matrices[start : start + at_once], parts, rate, self.bfloat16)


def _step_alike(matrices: list[Tensor], parts: int, rate: float, bfloat16: bool) -> None:
    """Steps along the orthogonalized momenta that stand in the gradients' places, of matrices of one shape. Of matrices
    that lie in parts on several processes, each process orthogonalizes the whole, and steps with its part."""
    stacked = torch.stack([full_tensor(matrix.grad) for matrix in matrices if matrix.grad is not None])
    pieces = stacked.view(parts * len(matrices), -1, stacked.shape[2])  # (n * parts, rows, columns)
    updates = orthogonalize(pieces, bfloat16=bfloat16).view(stacked.shape)
    scale = _SCALE * max(pieces.shape[1:]) ** 0.5
    own = [to_local(distribute_like(update, matrix)) for update, matrix in zip(updates, matrices, strict=True)]
    torch._foreach_add_([to_local(matrix) for matrix in matrices], own, alpha=-rate * scale)
