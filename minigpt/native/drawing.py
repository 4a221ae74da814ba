"""Draws next tokens from logits in C."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from minigpt.native import compiled

# At higher temperatures, logits that differ by more than 5e-5 could have equal weights in float32.
_HOTTEST = 100.0


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
