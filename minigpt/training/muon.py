"""The Muon optimizer: momentum with orthogonalized updates, for the matrices inside a model.

A gradient matrix mostly consists of a few strong directions. Muon makes all its directions equally strong: with the
momentum M = U S V^T it steps along U V^T, so that rare directions learn as fast as common ones.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

# Each row is a polynomial a X + b X X^T X + c (X X^T)^2 X, three matrix products. Together they raise small singular
# values 134-fold. Polynomials that raise them less learn more slowly.
POLYNOMIALS = ((8.28721, -23.59589, 17.30039), (4.10706, -2.94785, 0.54484), (3.94869, -2.90890, 0.55182))
SAFETY = 1.02  # singular values start 2 % below 1: bfloat16 may round one to above 1, where the polynomials diverge
_SCALE = 0.15  # the resulting singular values are 1.3 on average, so that updates are 0.2 x the learning rate
_MAX_NUMBERS = 2**26  # orthogonalized together: enough to fill a GPU, and little compared with a model that has more


def orthogonalize(matrices: Tensor, *, bfloat16: bool = False) -> Tensor:
    """Matrices with almost the same directions and about equal singular values, most of them between 0.4 and 1.9.

    First, with rows along the longer side of X, row i is divided by the root of the sum over j of |X X^T|_ij. Then no
    singular value is above 1, and most are far higher than if all of X were divided by its norm. Each polynomial then
    raises the small ones towards the large. `bfloat16` computes in bfloat16, which is precise enough; otherwise in
    the dtype of the matrices.
    Shapes: (n, rows, columns) -> (n, rows, columns).
    Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks" (the iteration); Amsel et al.
    2025, "The Polar Express", algorithm 1 (the polynomials: its first three); Boissin et al. 2025, "Turbo-Muon",
    after Prach and Lampert 2022, "Almost-orthogonal Lipschitz layers", theorem 1 (the rows).
    """
    x = matrices.bfloat16() if bfloat16 else matrices
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x  # so that X X^T is the smaller of the two products
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)  # prevents underflow and overflow
    gram = x @ x.mT  # (n, rows, rows)
    scale = gram.abs().sum(2, keepdim=True).clamp(min=1e-12).rsqrt() / SAFETY  # (n, rows, 1)
    x = x * scale
    for number, (a, b, c) in enumerate(POLYNOMIALS):
        gram = x @ x.mT if number else gram * scale * scale.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(matrices.dtype)


class Muon(torch.optim.Optimizer):
    """Orthogonalized Nesterov momentum with decoupled weight decay. Matrices of one shape are computed together.

    The root mean square of an update is 0.2 x the learning rate for every shape, about that of AdamW, so one learning
    rate serves both. A group's `parts` splits its matrices along their rows first: the queries, keys and values of each
    head are matrices of their own. `bfloat16` is for devices that multiply bfloat16 faster. `orthogonalize` may be
    replaced by a faster function.
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
        self.bfloat16, self.orthogonalize = bfloat16, orthogonalize

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Updates every matrix that has a gradient; may overwrite the gradients."""
        for matrices, group in self.of_one_shape():
            self.update(matrices, group)

    def of_one_shape(self, least: int = 1) -> Iterator[tuple[list[Tensor], dict[str, Any]]]:
        """The matrices that are computed together, `least` at a time if there are as many, and their group."""
        by_shape: defaultdict[tuple[int, torch.Size], list[Tensor]] = defaultdict(list)
        for number, group in enumerate(self.param_groups):
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                if "momentum" not in self.state[matrix]:
                    self.state[matrix]["momentum"] = torch.zeros_like(matrix)
                by_shape[(number, matrix.shape)].append(matrix)
        for (number, shape), matrices in by_shape.items():
            count = max(least, _MAX_NUMBERS // shape.numel())
            for start in range(0, len(matrices), count):
                yield matrices[start : start + count], self.param_groups[number]

    def update(self, matrices: list[Tensor], group: dict[str, Any]) -> None:
        """Updates matrices of one shape and group."""
        directions = self.directions(torch.stack(self.momenta(matrices, group)), group)
        self.move(matrices, list(directions), group)

    def momenta(self, matrices: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """Updates the momenta and decays the weights; returns Nesterov's momenta, in the memory of the gradients."""
        beta, gradients = group["momentum"], []
        for matrix in matrices:
            momentum, gradient = self.state[matrix]["momentum"], matrix.grad
            assert gradient is not None
            momentum.lerp_(gradient, 1 - beta)
            gradients.append(gradient.lerp_(momentum, beta))
            matrix.mul_(kept_part(group))
        return gradients

    def directions(self, momenta: Tensor, group: dict[str, Any]) -> Tensor:
        """The orthogonalized parts of momenta: (n, rows, columns) -> (n, rows, columns)."""
        pieces = momenta.view(group["parts"] * len(momenta), -1, momenta.shape[2])  # (n * parts, rows, columns)
        return self.orthogonalize(pieces, bfloat16=self.bfloat16).view(momenta.shape)

    def move(self, matrices: list[Tensor], directions: list[Tensor], group: dict[str, Any]) -> None:
        """Adds the scaled directions to the matrices."""
        torch._foreach_add_(matrices, directions, alpha=step_length(matrices[0].shape, group))


def kept_part(group: dict[str, Any]) -> float:
    """The factor of the weights, by the decoupled weight decay."""
    return float(1 - group["lr"] * group["weight_decay"])


def step_length(shape: torch.Size, group: dict[str, Any]) -> float:
    """The factor of the orthogonalized momenta of matrices (rows, columns)."""
    rows, columns = shape
    return float(-group["lr"] * _SCALE * max(rows // group["parts"], columns) ** 0.5)
