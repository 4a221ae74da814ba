"""Muon: momentum whose update is made orthogonal, for the matrices inside a model; it knows nothing of AdamW or rates.

A gradient matrix is mostly a few strong directions. Muon keeps its directions and makes them all equally strong: with
the momentum M = U S V^T it steps along U V^T, so that rare directions learn as fast as common ones.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from minigpt.training.distributed import alike, held, whole

# One pair of matrix products per row; the polynomial a X + b X X^T X + c (X X^T)^2 X lifts small singular values fast.
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_AT_ONCE = 2**26  # numbers orthogonalized together: they fill a GPU, and are little beside a model that has more


def orthogonalize(matrices: Tensor, *, coarsely: bool = False) -> Tensor:
    """The nearest matrices with (almost) equal singular values, between about 0.7 and 1.2, by Newton-Schulz iteration.

    On CUDA, and `coarsely` elsewhere too, in bfloat16, whose precision is enough here; else in the dtype given.
    Shapes: (n, rows, columns) -> (n, rows, columns).
    Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks"; Higham 2008, chapter 8.
    """
    a, b, c = _COEFFICIENTS
    x = matrices.bfloat16() if coarsely or matrices.device.type == "cuda" else matrices
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x  # so that X X^T is the smaller of the two products
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)  # singular values at most 1
    for _ in range(_ITERATIONS):
        gram = x @ x.mT  # (n, rows, rows)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(matrices.dtype)


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalized, with decoupled weight decay; matrices of one shape go through it together.

    An update's root mean square is 0.2 of the rate whatever the matrix's shape, which is what AdamW's comes to: one
    rate serves both. A group's `parts` cuts its matrices into so many along their rows first: queries, keys and values
    are three matrices. `coarsely` is for machines that multiply bfloat16 faster.
    Source: Jordan et al. 2024; Liu et al. 2025, "Muon is scalable for LLM training", equation 4 (the scale).
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        parts: int = 1,
        coarsely: bool = False,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "parts": parts})
        self.coarsely = coarsely

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """One step for every matrix that has a gradient."""
        same: defaultdict[tuple[Any, ...], list[tuple[Tensor, Tensor]]] = defaultdict(list)
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                momentum = self.state[matrix].setdefault("momentum", torch.zeros_like(matrix))
                momentum.lerp_(matrix.grad, 1 - group["momentum"])
                nesterov = matrix.grad.lerp(momentum, group["momentum"])
                matrix.mul_(1 - group["lr"] * group["weight_decay"])
                same[(matrix.shape, group["parts"], group["lr"])].append((matrix, nesterov))
        for (shape, parts, rate), pairs in same.items():
            at_once = max(1, _AT_ONCE // shape.numel())
            for start in range(0, len(pairs), at_once):
                _step_alike(pairs[start : start + at_once], parts, rate, self.coarsely)


def _step_alike(pairs: list[tuple[Tensor, Tensor]], parts: int, rate: float, coarsely: bool) -> None:
    """Steps along the orthogonalized momenta: pairs of a matrix and its momentum, all of one shape. Of matrices that
    lie in parts on several processes, each process orthogonalizes the whole, and steps with its part."""
    stacked = torch.stack([whole(momentum) for _, momentum in pairs])  # (n, parts * rows, columns)
    pieces = stacked.view(parts * len(pairs), -1, stacked.shape[2])  # (n * parts, rows, columns)
    updates = orthogonalize(pieces, coarsely=coarsely).view(stacked.shape)
    scale = 0.2 * max(pieces.shape[1:]) ** 0.5
    own = [held(alike(update, matrix)) for update, (matrix, _) in zip(updates, pairs, strict=True)]
    torch._foreach_add_([held(matrix) for matrix, _ in pairs], own, alpha=-rate * scale)
