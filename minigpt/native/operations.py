"""Operations of a training step on a CPU in C: layer norm, GELU, attention, cross entropy, AdamW, and those of Muon.

They are in training.c, compute in float32 and round results in bfloat16 once. Attention is one operation in float32 and
over few positions; over more, in bfloat16, its matrix products are PyTorch's and only its weights are computed here.
"""

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from minigpt.native import compiled

_LANES = 16  # as in platform.h
_BLOCK = _NORM_ROWS = 64  # as in training.c
_PARALLEL = 2**15  # numbers from which several threads are faster than one
_DTYPES = {torch.bfloat16: 0, torch.float32: 1}  # as in training.c
_ATTENTION_POSITIONS = 1024  # the gradient needs 8 bytes per pair of positions and thread
_BFLOAT16_ATTENTION_POSITIONS = 128  # for 256, PyTorch's products in bfloat16 are faster on Intel's processors
_ORTHOGONALIZED_ROWS = 1024  # of the shorter side; a thread needs 20 bytes per pair of them, and more


def fits(x: Tensor) -> bool:
    """Whether the functions below can compute with `x`, and are faster than PyTorch."""
    return _is_in_memory(x) and are_faster(x.dtype)


def _is_in_memory(x: Tensor) -> bool:
    """Whether C code can read `x`: a tensor of another type, or under torch.func's transforms, may have no memory."""
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    return type(x) in (Tensor, nn.Parameter) and not torch._C._are_functorch_transforms_active()


def layer_norm_fits(x: Tensor, weight: Tensor, dtype: torch.dtype) -> bool:
    """Whether `layer_norm` can compute with `x` and a result in this dtype, and is faster than PyTorch."""
    is_float32 = x.dtype == weight.dtype == torch.float32
    return is_float32 and _is_in_memory(x) and _is_in_memory(weight) and are_faster(dtype)


def update_fits(weight: Tensor) -> bool:
    """Whether the optimizers' functions below can change `weight`, and are faster than PyTorch."""
    return weight.dtype == torch.float32 and weight.is_contiguous() and fits(weight)


def attention_fits(qkv: Tensor, n_head: int) -> bool:
    """Whether `attention` can compute with queries, keys and values (B, T, 3C), and is faster than PyTorch."""
    t, c = qkv.shape[1], qkv.shape[2] // 3
    most = _ATTENTION_POSITIONS if qkv.dtype == torch.float32 else _BFLOAT16_ATTENTION_POSITIONS
    if t > most or c // n_head % _LANES:
        return False
    return fits(qkv) and are_faster(torch.float32)


def orthogonalization_fits(matrices: Tensor) -> bool:
    """Whether `orthogonalize` can compute with matrices (n, rows, columns), and is faster than PyTorch."""
    if matrices.dtype != torch.float32 or min(matrices.shape[1:]) > _ORTHOGONALIZED_ROWS:
        return False
    return torch.get_num_threads() <= 2 * len(matrices) and fits(matrices)  # each has one thread


def are_faster(dtype: torch.dtype) -> bool:
    """Whether the C code is there for this dtype, is fast, and uses as many threads as PyTorch."""
    loaded = compiled.library()
    if dtype not in _DTYPES or loaded is None:
        return False
    # Elsewhere it has no instruction for a product and a sum, and a Mac's PyTorch multiplies matrices much faster.
    if dtype == torch.float32 and compiled.selected(loaded) not in ("avx2", "avx512-vnni"):
        return False
    return bool(torch.get_num_threads() == 1 or loaded.minigpt_has_openmp())


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The layer norm of float32 rows in `dtype`, and what its gradient needs: (..., C), (C,), (C,) -> (..., C), (2, N).

    N is the number of rows.
    """
    x, weight, bias = x.contiguous(), weight.contiguous(), bias.contiguous()
    width = x.shape[-1]
    rows = x.numel() // max(1, width)
    y, statistics = torch.empty_like(x, dtype=dtype), x.new_empty(2, rows)
    _loaded().minigpt_layer_norm(
        _DTYPES[dtype], y.data_ptr(), statistics.data_ptr(), x.data_ptr(), weight.data_ptr(), bias.data_ptr(), rows,
        width, epsilon, _threads(x),
    )  # fmt: skip
    return y, statistics


def layer_norm_gradient(
    gradient: Tensor, x: Tensor, weight: Tensor, statistics: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, weight and bias from that of the result.

    Shapes: (..., C), (..., C), (C,), (2, N) -> (..., C), (C,), (C,).
    """
    gradient, x, weight = gradient.contiguous(), x.contiguous(), weight.contiguous()
    result, of_parameters, threads = torch.empty_like(x), x.new_empty(2, x.shape[-1]), _threads(x)
    sums = x.new_empty(-(-statistics.shape[1] // _NORM_ROWS), 2, x.shape[-1])
    _loaded().minigpt_layer_norm_gradient(
        _DTYPES[gradient.dtype], result.data_ptr(), of_parameters.data_ptr(), gradient.data_ptr(),
        statistics.data_ptr(), x.data_ptr(), weight.data_ptr(), statistics.shape[1], x.shape[-1], sums.data_ptr(),
        threads,
    )  # fmt: skip
    of_weight, of_bias = of_parameters
    return result, of_weight, of_bias


def gelu(x: Tensor) -> Tensor:
    """GPT-2's GELU of every number: (...) -> (...)."""
    x = x.contiguous()
    y = torch.empty_like(x)
    _loaded().minigpt_gelu(_DTYPES[x.dtype], y.data_ptr(), x.data_ptr(), x.numel(), _threads(x))
    return y


def gelu_gradient(gradient: Tensor, x: Tensor) -> Tensor:
    """The gradient with respect to `x` from that with respect to GELU(x): (...) twice -> (...)."""
    x, gradient = x.contiguous(), gradient.contiguous()
    result = torch.empty_like(x)
    _loaded().minigpt_gelu_gradient(
        _DTYPES[x.dtype], result.data_ptr(), gradient.data_ptr(), x.data_ptr(), x.numel(), _threads(x)
    )  # fmt: skip
    return result


def attention(qkv: Tensor, n_head: int) -> tuple[Tensor, Tensor]:
    """Causal attention from the queries, keys and values of all heads, which `attention_fits`.

    Returns the heads' results side by side, and what the gradient needs: (B, T, 3C) -> (B, T, C), (B, H, T).
    """
    qkv = qkv.contiguous()
    b, t, c = *qkv.shape[:2], qkv.shape[2] // 3
    y, logs = qkv.new_empty(b, t, c), qkv.new_empty(b, n_head, t, dtype=torch.float32)
    buffer, threads = _attention_buffer(qkv, n_head, gradient=False)
    _loaded().minigpt_attention(
        _DTYPES[qkv.dtype], y.data_ptr(), logs.data_ptr(), qkv.data_ptr(), b, t, n_head, c // n_head, buffer.data_ptr(),
        threads,
    )  # fmt: skip
    return y, logs


def attention_gradient(gradient: Tensor, qkv: Tensor, logs: Tensor) -> Tensor:
    """The gradient of `qkv` from that of the heads' results: (B, T, C), (B, T, 3C), (B, H, T) -> (B, T, 3C)."""
    qkv, gradient = qkv.contiguous(), gradient.contiguous()
    (b, t, c), n_head = gradient.shape, logs.shape[1]
    result = torch.empty_like(qkv)
    buffer, threads = _attention_buffer(qkv, n_head, gradient=True)
    _loaded().minigpt_attention_gradient(
        _DTYPES[qkv.dtype], result.data_ptr(), gradient.data_ptr(), logs.data_ptr(), qkv.data_ptr(), b, t, n_head,
        c // n_head, buffer.data_ptr(), threads,
    )  # fmt: skip
    return result


def _attention_buffer(qkv: Tensor, n_head: int, *, gradient: bool) -> tuple[Tensor, int]:
    """The memory of all threads, and their number."""
    t, width, threads = qkv.shape[1], qkv.shape[2] // 3 // n_head, _threads(qkv)
    room = _loaded().minigpt_attention_buffer(t, width, gradient)
    return qkv.new_empty(threads * room, dtype=torch.float32), threads


def causal_softmax_(scores: Tensor, scale: float) -> Tensor:
    """Overwrites contiguous scores (..., T, T) with the weights softmax(scale · scores) of the keys up to the query."""
    assert scores.is_contiguous()
    t, threads = scores.shape[-1], _threads(scores)
    buffer = torch.empty(threads, _padded(t), dtype=torch.float32, device=scores.device)
    _loaded().minigpt_causal_softmax(
        scores.data_ptr(), scores.numel() // max(1, t * t), t, scale, buffer.data_ptr(), threads
    )
    return scores


def causal_softmax_gradient(gradient: Tensor, weights: Tensor, scale: float) -> Tensor:
    """The gradient of the scores from that of the weights, which are contiguous: (..., T, T) twice -> (..., T, T)."""
    assert weights.is_contiguous()
    assert weights.shape == gradient.shape
    t, gradient = weights.shape[-1], gradient.contiguous()
    result = torch.empty_like(weights)
    _loaded().minigpt_causal_softmax_gradient(
        result.data_ptr(), gradient.data_ptr(), weights.data_ptr(), weights.numel() // max(1, t * t), t, scale,
        _threads(weights),
    )  # fmt: skip
    return result


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
    updates, threads = torch.empty_like(mean), _threads(mean)
    buffer = mean.new_empty(threads, mean.shape[1])
    _loaded().minigpt_adam_of_features(
        updates.data_ptr(), mean.data_ptr(), square.data_ptr(), gradient._address, tokens.data_ptr(),
        starts.data_ptr(), len(mean), coefficients, buffer.data_ptr(), threads,
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
    threads = _threads(weight)
    buffer = weight.new_empty(threads, 2, weight.shape[1])
    _loaded().minigpt_adam_of_tokens(
        weight.data_ptr(), mean.data_ptr(), square.data_ptr(), gradient._address, updates.data_ptr(),
        features.data_ptr(), starts.data_ptr(), len(weight), kept, coefficients, buffer.data_ptr(), threads,
    )  # fmt: skip


def momenta_(momenta: Sequence[Tensor], gradients: Sequence[Tensor], beta: float, dtype: torch.dtype) -> Tensor:
    """Updates the momenta of matrices of one shape; returns Nesterov's, of which a part `beta` is the momentum.

    Shapes: n x (rows, columns) twice, contiguous float32 -> (n, rows, columns) in `dtype`.
    """
    result = torch.empty(len(momenta), *momenta[0].shape, dtype=dtype, device=momenta[0].device)
    for x, momentum, gradient in zip(result, momenta, gradients, strict=True):
        gradient = gradient.contiguous()
        _check_updated(momentum, gradient)
        _loaded().minigpt_momentum(
            _DTYPES[dtype], x.data_ptr(), momentum.data_ptr(), gradient.data_ptr(), x.numel(), beta, _threads(x)
        )
    return result


def move_(weights: Sequence[Tensor], updates: Tensor, kept: float, factor: float) -> None:
    """Each weight becomes `kept` times itself plus `factor` times its update: n x (rows, columns), (n, rows, columns).

    Weights are contiguous float32; the updates are in float32 or bfloat16.
    """
    updates = updates.contiguous()
    _check_updated(*weights)
    for weight, update in zip(weights, updates, strict=True):
        assert weight.shape == update.shape
        _loaded().minigpt_move(
            _DTYPES[update.dtype], weight.data_ptr(), update.data_ptr(), weight.numel(), kept, factor,
            _threads(weight),
        )  # fmt: skip


def orthogonalize(matrices: Tensor, polynomials: Sequence[Sequence[float]], safety: float) -> Tensor:
    """Muon's orthogonalization by polynomials of three coefficients, as in `minigpt.training.muon`.

    Shapes: (n, rows, columns) -> (n, rows, columns).
    """
    matrices = matrices.contiguous()
    n, rows, columns = matrices.shape
    result, threads = torch.empty_like(matrices), min(_threads(matrices), n)
    coefficients = torch.tensor(polynomials, dtype=torch.float32, device=matrices.device)
    buffer = matrices.new_empty(threads * _loaded().minigpt_orthogonalization_buffer(rows, columns))
    _loaded().minigpt_orthogonalize(
        result.data_ptr(), matrices.data_ptr(), n, rows, columns, coefficients.data_ptr(), len(coefficients), safety,
        buffer.data_ptr(), threads,
    )  # fmt: skip
    return result


def cross_entropy_(
    logits: Tensor, targets: Tensor, vocab_size: int, teacher: Tensor | None = None, weight: float = 0.0
) -> Tensor:
    """Returns the summed cross entropy of some rows, (), and overwrites their logits with its gradient.

    With the logits of a `teacher`, its distribution has this `weight` in the targets. Columns from `vocab_size` on keep
    their values. Both matrices have contiguous rows at the same distance.
    Shapes: logits and teacher (n, V), targets (n, 1) int64.
    Raises: IndexError if a target is not below `vocab_size`.
    """
    assert logits.dtype in _DTYPES
    assert logits.stride(1) == 1
    assert vocab_size <= logits.shape[1]
    assert targets.dtype == torch.int64
    assert len(targets) == len(logits)
    assert teacher is None or (teacher.dtype, teacher.stride()) == (logits.dtype, logits.stride())
    n, threads = len(logits), _threads(logits)
    targets = targets.contiguous()
    losses, totals = torch.empty(2, n, dtype=torch.float32, device=logits.device)
    buffer = torch.empty(threads, 2, _padded(vocab_size), dtype=torch.float32, device=logits.device)
    failed = _loaded().minigpt_cross_entropy(
        _DTYPES[logits.dtype], logits.data_ptr(), None if teacher is None else teacher.data_ptr(), targets.data_ptr(),
        n, vocab_size, logits.stride(0), weight if teacher is not None else 0.0, losses.data_ptr(), totals.data_ptr(),
        buffer.data_ptr(), threads,
    )  # fmt: skip
    if failed:
        raise IndexError(f"a target is outside the vocabulary of {vocab_size} tokens")
    return (losses + totals.log_()).sum()


def _check_updated(*tensors: Tensor) -> None:
    """Tensors of one shape that C code reads and writes as float32."""
    for tensor in tensors:
        assert tensor.dtype == torch.float32
        assert tensor.is_contiguous()
        assert tensor.shape == tensors[0].shape


def _loaded() -> ctypes.CDLL:
    loaded = compiled.library()
    assert loaded is not None
    return loaded


def _threads(x: Tensor) -> int:
    return torch.get_num_threads() if x.numel() >= _PARALLEL else 1


def _padded(n: int) -> int:
    return -(-n // _BLOCK) * _BLOCK
