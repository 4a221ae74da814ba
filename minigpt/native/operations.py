"""Operations of a training step on a CPU in C: sums, layer norm, GELU, attention and cross entropy.

They are in training.c, compute in float32 and round results in bfloat16 once. Attention is one operation in float32 and
over few positions; over more, in bfloat16, its matrix products are PyTorch's and only its weights are computed here.
Intel's processors with AMX multiply tiles of bfloat16: there attention over more positions is one operation too, and
its weights are rounded to bfloat16.
"""

import ctypes

import torch
from torch import Tensor, nn

from minigpt.native import compiled

_LANES = 16  # as in platform.h
_BLOCK = _NORM_ROWS = 64  # as in training.c
_PARALLEL = 2**15  # numbers from which several threads are faster than one
DTYPES = {torch.bfloat16: 0, torch.float32: 1}  # as in training.c
_ATTENTION_POSITIONS = 1024  # the gradient needs 8 bytes per pair of positions and thread
_BFLOAT16_ATTENTION_POSITIONS = 128  # for 256, PyTorch's products in bfloat16 are faster, but those of tiles are not
_TILES = 32  # rows and columns of the tiles that amx_kernels.h multiplies at a time


def fits(x: Tensor) -> bool:
    """Whether the functions below can compute with `x`, and are faster than PyTorch."""
    return is_in_memory(x) and are_faster(x.dtype)


def is_in_memory(x: Tensor) -> bool:
    """Whether C code can read `x`: a tensor of another type, or under torch.func's transforms, may have no memory."""
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    return type(x) in (Tensor, nn.Parameter) and not torch._C._are_functorch_transforms_active()


def layer_norm_fits(x: Tensor, weight: Tensor, dtype: torch.dtype) -> bool:
    """Whether `layer_norm` can compute with `x` and a result in this dtype, and is faster than PyTorch."""
    is_float32 = x.dtype == weight.dtype == torch.float32
    return is_float32 and is_in_memory(x) and is_in_memory(weight) and are_faster(dtype)


def sum_fits(x: Tensor, y: Tensor) -> bool:
    """Whether `add` can compute with x and y, and is faster than PyTorch."""
    if (x.dtype, y.dtype) != (torch.float32, torch.bfloat16) or x.shape != y.shape:
        return False
    return is_in_memory(x) and is_in_memory(y) and are_faster(y.dtype)


def attention_fits(qkv: Tensor, n_head: int) -> bool:
    """Whether `attention` can compute with queries, keys and values (B, T, 3C), and is faster than PyTorch."""
    t, width = qkv.shape[1], qkv.shape[2] // 3 // n_head
    if t > _ATTENTION_POSITIONS or width % _LANES or not fits(qkv) or not are_faster(torch.float32):
        return False
    if qkv.dtype == torch.float32 or t <= _BFLOAT16_ATTENTION_POSITIONS:
        return True
    return are_tiled(t, width)


def are_faster(dtype: torch.dtype) -> bool:
    """Whether the C code is there for this dtype, is fast, and uses as many threads as PyTorch."""
    library = compiled.library()
    if dtype not in DTYPES or library is None:
        return False
    # Elsewhere it has no instruction for a product and a sum, and a Mac's PyTorch multiplies matrices much faster.
    if dtype == torch.float32 and compiled.selected(library) not in ("avx2", "avx512-vnni", "avx512-amx"):
        return False
    return bool(torch.get_num_threads() == 1 or library.minigpt_has_openmp())


def are_tiled(*lengths: int) -> bool:
    """Whether the processor multiplies tiles of bfloat16 (AMX), and these lengths are multiples of theirs."""
    return compiled.selected(loaded()) == "avx512-amx" and not any(length % _TILES for length in lengths)


def add(x: Tensor, y: Tensor) -> Tensor:
    """The sum of float32 numbers and some in float32 or bfloat16: (...), (...) -> (...) in float32."""
    x, y = x.contiguous(), y.contiguous()
    assert x.dtype == torch.float32
    assert x.shape == y.shape
    result = torch.empty_like(x)
    loaded().minigpt_add(DTYPES[y.dtype], result.data_ptr(), x.data_ptr(), y.data_ptr(), x.numel(), thread_count(x))
    return result


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The layer norm of float32 rows in `dtype`, and what its gradient needs: (..., C), (C,), (C,) -> (..., C), (2, N).

    N is the number of rows.
    """
    x, weight, bias = x.contiguous(), weight.contiguous(), bias.contiguous()
    width = x.shape[-1]
    rows = x.numel() // max(1, width)
    y, statistics = torch.empty_like(x, dtype=dtype), x.new_empty(2, rows)
    loaded().minigpt_layer_norm(
        DTYPES[dtype], y.data_ptr(), statistics.data_ptr(), x.data_ptr(), weight.data_ptr(), bias.data_ptr(), rows,
        width, epsilon, thread_count(x),
    )  # fmt: skip
    return y, statistics


def layer_norm_gradient(
    gradient: Tensor, x: Tensor, weight: Tensor, statistics: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, weight and bias from that of the result.

    Shapes: (..., C), (..., C), (C,), (2, N) -> (..., C), (C,), (C,).
    """
    gradient, x, weight = gradient.contiguous(), x.contiguous(), weight.contiguous()
    result, of_parameters, threads = torch.empty_like(x), x.new_empty(2, x.shape[-1]), thread_count(x)
    sums = x.new_empty(-(-statistics.shape[1] // _NORM_ROWS), 2, x.shape[-1])
    loaded().minigpt_layer_norm_gradient(
        DTYPES[gradient.dtype], result.data_ptr(), of_parameters.data_ptr(), gradient.data_ptr(),
        statistics.data_ptr(), x.data_ptr(), weight.data_ptr(), statistics.shape[1], x.shape[-1], sums.data_ptr(),
        threads,
    )  # fmt: skip
    of_weight, of_bias = of_parameters
    return result, of_weight, of_bias


def gelu(x: Tensor) -> Tensor:
    """GPT-2's GELU of every number: (...) -> (...)."""
    x = x.contiguous()
    y = torch.empty_like(x)
    loaded().minigpt_gelu(DTYPES[x.dtype], y.data_ptr(), x.data_ptr(), x.numel(), thread_count(x))
    return y


def gelu_gradient(gradient: Tensor, x: Tensor) -> Tensor:
    """The gradient with respect to `x` from that with respect to GELU(x): (...) twice -> (...)."""
    x, gradient = x.contiguous(), gradient.contiguous()
    result = torch.empty_like(x)
    loaded().minigpt_gelu_gradient(
        DTYPES[x.dtype], result.data_ptr(), gradient.data_ptr(), x.data_ptr(), x.numel(), thread_count(x)
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
    loaded().minigpt_attention(
        DTYPES[qkv.dtype], y.data_ptr(), logs.data_ptr(), qkv.data_ptr(), b, t, n_head, c // n_head, buffer.data_ptr(),
        threads,
    )  # fmt: skip
    return y, logs


def attention_gradient(gradient: Tensor, qkv: Tensor, logs: Tensor) -> Tensor:
    """The gradient of `qkv` from that of the heads' results: (B, T, C), (B, T, 3C), (B, H, T) -> (B, T, 3C)."""
    qkv, gradient = qkv.contiguous(), gradient.contiguous()
    (b, t, c), n_head = gradient.shape, logs.shape[1]
    result = torch.empty_like(qkv)
    buffer, threads = _attention_buffer(qkv, n_head, gradient=True)
    loaded().minigpt_attention_gradient(
        DTYPES[qkv.dtype], result.data_ptr(), gradient.data_ptr(), logs.data_ptr(), qkv.data_ptr(), b, t, n_head,
        c // n_head, buffer.data_ptr(), threads,
    )  # fmt: skip
    return result


def _attention_buffer(qkv: Tensor, n_head: int, *, gradient: bool) -> tuple[Tensor, int]:
    """The memory of all threads, and their number."""
    t, width, threads = qkv.shape[1], qkv.shape[2] // 3 // n_head, thread_count(qkv)
    room = loaded().minigpt_attention_buffer(t, width, gradient)
    return qkv.new_empty(threads * room, dtype=torch.float32), threads


def causal_softmax_(scores: Tensor, scale: float) -> Tensor:
    """Overwrites contiguous scores (..., T, T) with the weights softmax(scale · scores) of the keys up to the query."""
    assert scores.is_contiguous()
    t, threads = scores.shape[-1], thread_count(scores)
    buffer = torch.empty(threads, _padded(t), dtype=torch.float32, device=scores.device)
    loaded().minigpt_causal_softmax(
        scores.data_ptr(), scores.numel() // max(1, t * t), t, scale, buffer.data_ptr(), threads
    )
    return scores


def causal_softmax_gradient(gradient: Tensor, weights: Tensor, scale: float) -> Tensor:
    """The gradient of the scores from that of the weights, which are contiguous: (..., T, T) twice -> (..., T, T)."""
    assert weights.is_contiguous()
    assert weights.shape == gradient.shape
    t, gradient = weights.shape[-1], gradient.contiguous()
    result = torch.empty_like(weights)
    loaded().minigpt_causal_softmax_gradient(
        result.data_ptr(), gradient.data_ptr(), weights.data_ptr(), weights.numel() // max(1, t * t), t, scale,
        thread_count(weights),
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
    assert logits.dtype in DTYPES
    assert logits.stride(1) == 1
    assert vocab_size <= logits.shape[1]
    assert targets.dtype == torch.int64
    assert len(targets) == len(logits)
    assert teacher is None or (teacher.dtype, teacher.stride()) == (logits.dtype, logits.stride())
    n, threads = len(logits), thread_count(logits)
    targets = targets.contiguous()
    losses, totals = torch.empty(2, n, dtype=torch.float32, device=logits.device)
    buffer = torch.empty(threads, 2, _padded(vocab_size), dtype=torch.float32, device=logits.device)
    failed = loaded().minigpt_cross_entropy(
        DTYPES[logits.dtype], logits.data_ptr(), None if teacher is None else teacher.data_ptr(), targets.data_ptr(),
        n, vocab_size, logits.stride(0), weight if teacher is not None else 0.0, losses.data_ptr(), totals.data_ptr(),
        buffer.data_ptr(), threads,
    )  # fmt: skip
    if failed:
        raise IndexError(f"a target is outside the vocabulary of {vocab_size} tokens")
    return (losses + totals.log_()).sum()


def loaded() -> ctypes.CDLL:
    """The compiled C code, which is there."""
    library = compiled.library()
    assert library is not None
    return library


def thread_count(x: Tensor) -> int:
    """How many threads compute with `x`."""
    return torch.get_num_threads() if x.numel() >= _PARALLEL else 1


def _padded(n: int) -> int:
    return -(-n // _BLOCK) * _BLOCK
