"""Linear layers and their gradients in C, on processors that multiply tiles of bfloat16 (AMX).

y = x W^T + bias is computed from the float32 weights at once, and the gradients of weights and bias are in float32.
PyTorch converts each matrix in a separate pass, copies the bias to every row, and is slow where the first operand of
a product is a transpose.
"""

import torch
from torch import Tensor

from minigpt.native import operations


def linear_fits(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> bool:
    """Whether `linear` can compute with inputs (..., in), and products in `dtype`, and is faster than PyTorch.

    Shapes: weight (out, in), bias (out,).
    """
    if not dtype == x.dtype == torch.bfloat16 or bias is None or not weight.dtype == bias.dtype == torch.float32:
        return False
    if not all(map(operations.is_in_memory, (x, weight, bias))) or not operations.are_faster(x.dtype):
        return False
    width = weight.shape[1]
    return x.numel() > 0 and x.shape[-1] == width and operations.are_tiled(x.numel() // width, *weight.shape)


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x W^T + bias in bfloat16: (..., in), (out, in), (out,) -> (..., out)."""
    x, weight, bias = x.contiguous(), weight.contiguous(), bias.contiguous()
    out, width = weight.shape
    y = x.new_empty(*x.shape[:-1], out)
    rows = x.numel() // width
    buffer, threads = _buffer(x, weight, rows)
    operations.loaded().minigpt_linear(
        y.data_ptr(), x.data_ptr(), weight.data_ptr(), bias.data_ptr(), rows, width, out, buffer.data_ptr(), threads
    )
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
    buffer, threads = _buffer(gradient, weight, rows)
    operations.loaded().minigpt_linear_gradients(
        *(None if result is None else result.data_ptr() for result in (of_x, of_weight, of_bias)), gradient.data_ptr(),
        None if x is None else x.data_ptr(), weight.data_ptr(), rows, width, out, buffer.data_ptr(), threads,
    )  # fmt: skip
    return of_x, of_weight, of_bias


def _buffer(x: Tensor, weight: Tensor, rows: int) -> tuple[Tensor, int]:
    """The memory of all threads, and their number: many if there are many inputs or gradients x, or many weights."""
    threads = max(map(operations.thread_count, (x, weight)))
    out, width = weight.shape
    return x.new_empty(operations.loaded().minigpt_linear_buffer(rows, width, out, threads)), threads
