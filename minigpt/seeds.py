"""Counter-based random numbers: hashes of integers by splitmix64 (Steele et al. 2014)."""

import numpy as np
import numpy.typing as npt

_STEP, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MASK = 2**64 - 1


def mix_seed(*parts: int) -> int:
    """Hashes several integers to one 63-bit seed."""
    state = 0
    for part in parts:
        state = (state ^ (part & _MASK)) + _STEP & _MASK
        state = (state ^ (state >> 30)) * _FIRST & _MASK
        state = (state ^ (state >> 27)) * _SECOND & _MASK
        state ^= state >> 31
    return state >> 1


def splitmix64(positions: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The outputs of splitmix64, started at 0, at these positions of its sequence, counted from 0; elementwise."""
    with np.errstate(over="ignore"):
        z = positions * np.uint64(_STEP) + np.uint64(_STEP)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(_FIRST)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(_SECOND)
    return z ^ (z >> np.uint64(31))
