"""Memory for the logits of some tokens at a time."""

from torch import Tensor

_ALIGNMENT = 64  # numbers: a matrix product writes rows a third faster if they begin at whole cache lines


def logits_buffer(features: Tensor, rows: int, vocab_size: int) -> Tensor:
    """Uninitialized memory for logits, (rows, vocab_size), whose rows begin at whole cache lines.

    It is on the features' device, in their dtype.
    """
    padded = features.new_empty(rows, -(-vocab_size // _ALIGNMENT) * _ALIGNMENT)
    # oneDNN's AMX kernels read past the end of a row and multiply that by 0, and 0 times NaN is NaN.
    padded[:, vocab_size:] = 0
    return padded[:, :vocab_size]
