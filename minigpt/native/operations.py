"""Operations of a training step on a CPU in C: sums, layer norm, GELU, attention, cross entropy and linear layers; and
the draw of the next tokens of a text.

They are in training.c, compute in float32 and round results in bfloat16 once. Attention is one operation in float32 and
over few positions; over more, in bfloat16, its matrix products are PyTorch's and only its weights are computed here.
Intel's processors with AMX multiply tiles of bfloat16: there attention over more positions is one operation too, and
its weights are rounded to bfloat16. Linear layers are only for such processors: y = x W^T + bias is computed from the
float32 weights at once, with the gradients of weights and bias in float32. PyTorch converts each matrix in a separate
pass, copies the bias to every row, and is slow where the first operand of a product is a transpose.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from minigpt.native import compiled

_LANES = 16  # as in platform.h
_BLOCK = _NORM_ROWS = 64  # as in training.c
_PARALLEL = 2**15  # numbers from which several threads are faster than one
DTYPES = {torch.bfloat16: 0, torch.float32: 1}  # as in training.c
_ATTENTION_POSITIONS = 1024  # the gradient needs 8 bytes per pair of positions and thread
_BFLOAT16_ATTENTION_POSITIONS = 128  # for 256, PyTorch's products in bfloat16 are faster, but those of tiles are not
# Of a draw. At higher temperatures, logits that differ by more than 5e-5 could have equal weights in float32.
_HOTTEST = 100.0
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
    library = compiled.library()
    assert library is not None
    return compiled.selected(library) == "avx512-amx" and not any(length % _TILES for length in lengths)


def add(x: Tensor, y: Tensor) -> Tensor:
    """The sum of float32 numbers and some in float32 or bfloat16: (...), (...) -> (...) in float32."""
    x, y = x.contiguous(), y.contiguous()
    assert x.dtype == torch.float32
    assert x.shape == y.shape
    result = torch.empty_like(x)
    call("add", y.dtype, result, x, y, x.numel(), thread_count(x))
    return result


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The layer norm of float32 rows in `dtype`, and what its gradient needs: (..., C), (C,), (C,) -> (..., C), (2, N).

    N is the number of rows.
    """
    x, weight, bias = x.contiguous(), weight.contiguous(), bias.contiguous()
    width = x.shape[-1]
    rows = x.numel() // max(1, width)
    y, statistics = torch.empty_like(x, dtype=dtype), x.new_empty(2, rows)
    call("layer_norm", dtype, y, statistics, x, weight, bias, rows, width, epsilon, thread_count(x))
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
    call(
        "layer_norm_gradient", gradient.dtype, result, of_parameters, gradient, statistics, x, weight,
        statistics.shape[1], x.shape[-1], sums, threads,
    )  # fmt: skip
    of_weight, of_bias = of_parameters
    return result, of_weight, of_bias


def gelu(x: Tensor) -> Tensor:
    """GPT-2's GELU of every number: (...) -> (...)."""
    x = x.contiguous()
    y = torch.empty_like(x)
    call("gelu", x.dtype, y, x, x.numel(), thread_count(x))
    return y


def gelu_gradient(gradient: Tensor, x: Tensor) -> Tensor:
    """The gradient with respect to `x` from that with respect to GELU(x): (...) twice -> (...)."""
    x, gradient = x.contiguous(), gradient.contiguous()
    result = torch.empty_like(x)
    call("gelu_gradient", x.dtype, result, gradient, x, x.numel(), thread_count(x))
    return result


def attention(qkv: Tensor, n_head: int) -> tuple[Tensor, Tensor]:
    """Causal attention from the queries, keys and values of all heads, which `attention_fits`.

    Returns the heads' results side by side, and what the gradient needs: (B, T, 3C) -> (B, T, C), (B, H, T).
    """
    qkv = qkv.contiguous()
    b, t, c = *qkv.shape[:2], qkv.shape[2] // 3
    y, logs = qkv.new_empty(b, t, c), qkv.new_empty(b, n_head, t, dtype=torch.float32)
    buffer, threads = _attention_buffer(qkv, n_head, gradient=False)
    call("attention", qkv.dtype, y, logs, qkv, b, t, n_head, c // n_head, buffer, threads)
    return y, logs


def attention_gradient(gradient: Tensor, qkv: Tensor, logs: Tensor) -> Tensor:
    """The gradient of `qkv` from that of the heads' results: (B, T, C), (B, T, 3C), (B, H, T) -> (B, T, 3C)."""
    qkv, gradient = qkv.contiguous(), gradient.contiguous()
    (b, t, c), n_head = gradient.shape, logs.shape[1]
    result = torch.empty_like(qkv)
    buffer, threads = _attention_buffer(qkv, n_head, gradient=True)
    call("attention_gradient", qkv.dtype, result, gradient, logs, qkv, b, t, n_head, c // n_head, buffer, threads)
    return result


def _attention_buffer(qkv: Tensor, n_head: int, *, gradient: bool) -> tuple[Tensor, int]:
    """The memory of all threads, and their number."""
    t, width, threads = qkv.shape[1], qkv.shape[2] // 3 // n_head, thread_count(qkv)
    room = call("attention_buffer", t, width, gradient)
    return qkv.new_empty(threads * room, dtype=torch.float32), threads


def causal_softmax_(scores: Tensor, scale: float) -> Tensor:
    """Overwrites contiguous scores (..., T, T) with the weights softmax(scale · scores) of the keys up to the query."""
    assert scores.is_contiguous()
    t, threads = scores.shape[-1], thread_count(scores)
    buffer = torch.empty(threads, _padded(t), dtype=torch.float32, device=scores.device)
    call("causal_softmax", scores, scores.numel() // max(1, t * t), t, scale, buffer, threads)
    return scores


def causal_softmax_gradient(gradient: Tensor, weights: Tensor, scale: float) -> Tensor:
    """The gradient of the scores from that of the weights, which are contiguous: (..., T, T) twice -> (..., T, T)."""
    assert weights.is_contiguous()
    assert weights.shape == gradient.shape
    t, gradient = weights.shape[-1], gradient.contiguous()
    result = torch.empty_like(weights)
    call(
        "causal_softmax_gradient", result, gradient, weights, weights.numel() // max(1, t * t), t, scale,
        thread_count(weights),
    )  # fmt: skip
    return result


def cross_entropy_(
    logits: Tensor, targets: Tensor, vocab_size: int, teacher: Tensor | None = None, weight: float = 0.0
) -> Tensor:
    """Returns the summed cross entropy of some rows, (), and overwrites their logits with its gradient.

    With the logits of a `teacher`, its distribution has this `weight` in the targets. Columns from `vocab_size` on keep
    their values. A teacher's logits whose rows lie otherwise than the logits' are copied.
    Shapes: logits and teacher (n, V), targets (n, 1) int64.
    Raises: IndexError if a target is not below `vocab_size`.
    """
    assert logits.dtype in DTYPES
    assert logits.stride(1) == 1
    assert vocab_size <= logits.shape[1]
    assert targets.dtype == torch.int64
    assert len(targets) == len(logits)
    if teacher is not None and (teacher.dtype, teacher.stride()) != (logits.dtype, logits.stride()):
        teacher = torch.empty_like(logits).copy_(teacher)  # of another origin than a teacher's head
    n, threads = len(logits), thread_count(logits)
    targets = targets.contiguous()
    losses, totals = torch.empty(2, n, dtype=torch.float32, device=logits.device)
    buffer = torch.empty(threads, 2, _padded(vocab_size), dtype=torch.float32, device=logits.device)
    failed = call(
        "cross_entropy", logits.dtype, logits, teacher, targets, n, vocab_size, logits.stride(0),
        0.0 if teacher is None else weight, losses, totals, buffer, threads,
    )  # fmt: skip
    if failed:
        raise IndexError(f"a target is outside the vocabulary of {vocab_size} tokens")
    return (losses + totals.log_()).sum()


def linear_fits(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> bool:
    """Whether `linear` can compute with inputs (..., in), and products in `dtype`, and is faster than PyTorch.

    Shapes: weight (out, in), bias (out,).
    """
    if not dtype == x.dtype == torch.bfloat16 or bias is None or not weight.dtype == bias.dtype == torch.float32:
        return False
    if not all(map(is_in_memory, (x, weight, bias))) or not are_faster(x.dtype):
        return False
    width = weight.shape[1]
    return x.numel() > 0 and x.shape[-1] == width and are_tiled(x.numel() // width, *weight.shape)


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x W^T + bias in bfloat16: (..., in), (out, in), (out,) -> (..., out)."""
    x, weight, bias = x.contiguous(), weight.contiguous(), bias.contiguous()
    out, width = weight.shape
    y = x.new_empty(*x.shape[:-1], out)
    rows = x.numel() // width
    buffer, threads = _linear_buffer(x, weight, rows)
    call("linear", y, x, weight, bias, rows, width, out, buffer, threads)
    return y


def linear_gradients(
    gradient: Tensor, x: Tensor | None, weight: Tensor, *, of_input: bool
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of x, if it is wanted, and of weight and bias, unless x is None, from that of the result.

    Shapes: (..., out), (..., in), (out, in) -> (..., in), (out, in), (out,).
    """
    gradient, weight = gradient.contiguous(), weight.contiguous()
    out, width = weight.shape
    rows = gradient.numel() // out
    of_x = gradient.new_empty(*gradient.shape[:-1], width) if of_input else None
    of_weight, of_bias = (None, None) if x is None else (torch.empty_like(weight), weight.new_empty(out))
    x = None if x is None else x.contiguous()
    buffer, threads = _linear_buffer(gradient, weight, rows)
    call(
        "linear_gradients", of_x, of_weight, of_bias, gradient, x, weight, rows, width, out,
        buffer, threads,
    )  # fmt: skip
    return of_x, of_weight, of_bias


def _linear_buffer(x: Tensor, weight: Tensor, rows: int) -> tuple[Tensor, int]:
    """The memory of all threads, and their number: many if there are many inputs or gradients x, or many weights."""
    threads = max(map(thread_count, (x, weight)))
    out, width = weight.shape
    return x.new_empty(call("linear_buffer", rows, width, out, threads)), threads


def draw_tokens(
    logits: Tensor, numbers: Sequence[float], temperature: float, top_k: int | None, top_p: float, min_p: float
) -> Tensor | None:
    """The tokens that numbers in [0, 1), one for each row, select after temperature, top-k, top-p and min-p.

    None if they cannot be drawn here: for logits of another device or dtype, without the compiled C code, for very high
    temperatures, and if a logit is NaN or the largest of a row is infinite.
    Shapes: (B, V) -> (B,) int64.
    """
    if logits.device.type != "cpu" or logits.dtype != torch.float32 or temperature > _HOTTEST:
        return None
    library = compiled.library()
    if library is None:
        return None
    rows, n = logits.shape
    assert len(numbers) == rows
    logits = logits.contiguous()
    selected, tokens = (ctypes.c_double * rows)(*numbers), (ctypes.c_int64 * rows)()
    settings = ctypes.byref(compiled.Truncation(temperature, top_p, min_p, top_k or 0))
    threads = torch.get_num_threads() if rows > 1 else 1  # as elsewhere, so that OpenMP keeps its threads
    library.minigpt_draw(tokens, logits.data_ptr(), selected, rows, n, settings, threads)
    return None if -1 in tokens else torch.tensor(tokens[:], dtype=torch.int64, device="cpu")


def call(name: str, *arguments: Any) -> Any:
    """Calls a function of the C code, which is there; a tensor is passed as its address, a dtype as its number."""
    library = compiled.library()
    assert library is not None
    return getattr(library, f"minigpt_{name}")(*map(_argument, arguments))


def _argument(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.data_ptr()
    return DTYPES[value] if isinstance(value, torch.dtype) else value


def thread_count(x: Tensor) -> int:
    """How many threads compute with `x`."""
    return torch.get_num_threads() if x.numel() >= _PARALLEL else 1


def _padded(n: int) -> int:
    return -(-n // _BLOCK) * _BLOCK
