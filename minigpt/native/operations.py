"""Operations of a training step on a CPU in C: GELU, causal attention, the cross entropy, Muon's orthogonalization.

They are in training.c, compute in float32 and round results in bfloat16 once. Attention is one operation in float32 and
over few positions; over more, in bfloat16, its matrix products are PyTorch's and only its weights are computed here.
"""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from minigpt.native import compiled

_LANES = 16  # as in platform.h
_BLOCK = 64  # as in training.c
_PARALLEL = 2**15  # numbers from which several threads are faster than one
_DTYPES = {torch.bfloat16: 0, torch.float32: 1}  # as in training.c
_ATTENTION_POSITIONS = 1024  # the gradient needs 8 bytes per pair of positions and thread
_BFLOAT16_ATTENTION_POSITIONS = 128  # for 256, PyTorch's products in bfloat16 are faster on Intel's processors
_ORTHOGONALIZED_ROWS = 1024  # of the shorter side; a thread needs 20 bytes per pair of them, and more


def fits(x: Tensor) -> bool:
    """Whether the functions below can compute with `x`, and are faster than PyTorch."""
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    # A tensor of another type, or under torch.func's transforms, may have no memory.
    return type(x) is Tensor and not torch._C._are_functorch_transforms_active() and are_faster(x.dtype)


def attention_fits(qkv: Tensor, n_head: int) -> bool:
    """Whether `attention` can compute with queries, keys and values (B, T, 3C), and is faster than PyTorch.

    Those in bfloat16 it computes with after their conversion to float32.
    """
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
    y, logs = qkv.new_empty(b, t, c), qkv.new_empty(b, n_head, t)
    buffer, threads = _attention_buffer(qkv, n_head, gradient=False)
    _loaded().minigpt_attention(
        y.data_ptr(), logs.data_ptr(), qkv.data_ptr(), b, t, n_head, c // n_head, buffer.data_ptr(), threads
    )
    return y, logs


def attention_gradient(gradient: Tensor, qkv: Tensor, logs: Tensor) -> Tensor:
    """The gradient of `qkv` from that of the heads' results: (B, T, C), (B, T, 3C), (B, H, T) -> (B, T, 3C)."""
    qkv, gradient = qkv.contiguous(), gradient.contiguous()
    (b, t, c), n_head = gradient.shape, logs.shape[1]
    result = torch.empty_like(qkv)
    buffer, threads = _attention_buffer(qkv, n_head, gradient=True)
    _loaded().minigpt_attention_gradient(
        result.data_ptr(), gradient.data_ptr(), logs.data_ptr(), qkv.data_ptr(), b, t, n_head, c // n_head,
        buffer.data_ptr(), threads,
    )  # fmt: skip
    return result


def _attention_buffer(qkv: Tensor, n_head: int, *, gradient: bool) -> tuple[Tensor, int]:
    """The memory of all threads, and their number."""
    t, width, threads = qkv.shape[1], qkv.shape[2] // 3 // n_head, _threads(qkv)
    return qkv.new_empty(threads * _loaded().minigpt_attention_buffer(t, width, gradient)), threads


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


def _loaded() -> ctypes.CDLL:
    loaded = compiled.library()
    assert loaded is not None
    return loaded


def _threads(x: Tensor) -> int:
    return torch.get_num_threads() if x.numel() >= _PARALLEL else 1


def _padded(n: int) -> int:
    return -(-n // _BLOCK) * _BLOCK
