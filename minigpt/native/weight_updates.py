"""The optimizers' updates on a CPU in C: AdamW of a token embedding with spelling features, and Muon.

The functions are in training.c.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from minigpt.native import compiled, operations

_ORTHOGONALIZED_ROWS = 1024  # of the shorter side; a thread needs 20 bytes per pair of them, and more


def update_fits(weight: Tensor) -> bool:
    """Whether the optimizers' functions below can change `weight`, and are faster than PyTorch."""
    return weight.dtype == torch.float32 and weight.is_contiguous() and operations.fits(weight)


def orthogonalization_fits(matrices: Tensor) -> bool:
    """Whether `orthogonalize` can compute with matrices (n, rows, columns), and is faster than PyTorch."""
    shape = matrices.shape[1:]
    if min(shape) > _ORTHOGONALIZED_ROWS or not operations.fits(matrices):
        return False
    if torch.get_num_threads() > 2 * len(matrices):  # each has one thread
        return False
    return matrices.dtype == torch.float32 or operations.are_tiled(*shape)


@dataclass(frozen=True, eq=False)
class RowGradient:
    """The gradient of a matrix (V, C) by those of its rows that have any.

    Shapes: rows (S, C) float32; positions (V,) int64, of each row of the matrix in `rows`, -1 if it has no gradient.
    """

    rows: Tensor
    positions: Tensor

    def __post_init__(self) -> None:
        assert self.rows.dtype == torch.float32
        assert self.rows.is_contiguous()
        assert self.positions.dtype == torch.int64
        assert self.positions.is_contiguous()

    @property
    def _address(self) -> Any:
        return compiled.Gradient(self.rows.data_ptr(), self.positions.data_ptr(), self.rows.shape[1])


def adam(learning_rate: float, beta1: float, beta2: float, epsilon: float, step: int) -> compiled.Adam:
    """The coefficients of Adam's update number `step`, counted from 1."""
    return compiled.Adam(beta1, beta2, learning_rate / (1 - beta1**step), 1 / math.sqrt(1 - beta2**step), epsilon)


def adam_of_features(
    mean: Tensor, square: Tensor, gradient: RowGradient, tokens: Tensor, starts: Tensor, coefficients: compiled.Adam
) -> Tensor:
    """Updates Adam's moments of spelling features (F, C), whose gradients are the sums of their tokens'.

    The tokens of feature f are `tokens[starts[f] : starts[f + 1]]`. Returns the updates, which are to be subtracted.
    Shapes: mean and square (F, C), tokens (N,) int64, starts (F + 1,) int64 -> (F, C).
    """
    _check_updated(mean, square)
    updates, threads = torch.empty_like(mean), operations.thread_count(mean)
    buffer = mean.new_empty(threads, mean.shape[1])
    operations.call(
        "adam_of_features", updates, mean, square, gradient._address, tokens, starts, len(mean), coefficients, buffer,
        threads,
    )  # fmt: skip
    return updates


def adam_of_tokens_(
    weight: Tensor, mean: Tensor, square: Tensor, gradient: RowGradient, updates: Tensor, features: Tensor,
    starts: Tensor, kept: float, coefficients: compiled.Adam,
) -> None:  # fmt: skip
    """Updates a token embedding (V, C), after a multiplication with `kept`, by Adam and by its features' updates.

    The features of token v are `features[starts[v] : starts[v + 1]]`; `updates` (F, C) are from `adam_of_features`.
    Shapes: mean and square (V, C), features (N,) int64, starts (V + 1,) int64.
    """
    _check_updated(weight, mean, square)
    threads = operations.thread_count(weight)
    buffer = weight.new_empty(threads, 2, weight.shape[1])
    operations.call(
        "adam_of_tokens", weight, mean, square, gradient._address, updates, features, starts, len(weight), kept,
        coefficients, buffer, threads,
    )  # fmt: skip


def momenta_(momenta: Sequence[Tensor], gradients: Sequence[Tensor], beta: float, dtype: torch.dtype) -> Tensor:
    """Updates the momenta of matrices of one shape; returns Nesterov's, of which a part `beta` is the momentum.

    Shapes: n x (rows, columns) twice, contiguous float32 -> (n, rows, columns) in `dtype`.
    """
    result = torch.empty(len(momenta), *momenta[0].shape, dtype=dtype, device=momenta[0].device)
    for x, momentum, gradient in zip(result, momenta, gradients, strict=True):
        gradient = gradient.contiguous()
        _check_updated(momentum, gradient)
        operations.call("momentum", dtype, x, momentum, gradient, x.numel(), beta, operations.thread_count(x))
    return result


def move_(weights: Sequence[Tensor], updates: Tensor, kept: float, factor: float) -> None:
    """Each weight becomes `kept` times itself plus `factor` times its update: n x (rows, columns), (n, rows, columns).

    Weights are contiguous float32; the updates are in float32 or bfloat16.
    """
    updates = updates.contiguous()
    _check_updated(*weights)
    for weight, update in zip(weights, updates, strict=True):
        assert weight.shape == update.shape
        operations.call(
            "move", update.dtype, weight, update, weight.numel(), kept, factor, operations.thread_count(weight),
        )  # fmt: skip


def orthogonalize(matrices: Tensor, polynomials: Sequence[Sequence[float]], safety: float) -> Tensor:
    """Muon's orthogonalization by polynomials of three coefficients, as in `minigpt.training.muon`.

    Shapes: (n, rows, columns) -> (n, rows, columns).
    """
    matrices = matrices.contiguous()
    n, rows, columns = matrices.shape
    result, threads = torch.empty_like(matrices), min(operations.thread_count(matrices), n)
    coefficients = torch.tensor(polynomials, dtype=torch.float32, device=matrices.device)
    room = operations.call("orthogonalization_buffer", matrices.dtype, rows, columns)
    buffer = matrices.new_empty(threads * room, dtype=torch.float32)
    operations.call(
        "orthogonalize", matrices.dtype, result, matrices, n, rows, columns, coefficients, len(coefficients), safety,
        buffer, threads,
    )  # fmt: skip
    return result


def _check_updated(*tensors: Tensor) -> None:
    """Tensors of one shape that C code reads and writes as float32."""
    for tensor in tensors:
        assert tensor.dtype == torch.float32
        assert tensor.is_contiguous()
        assert tensor.shape == tensors[0].shape
