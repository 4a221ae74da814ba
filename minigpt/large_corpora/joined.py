"""Several arrays of tokens that are read as one, without copying them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


class JoinedArrays:
    """One-dimensional arrays end to end, (N,); a slice or an array of positions gives a NumPy array."""

    def __init__(self, arrays: Sequence[Any]) -> None:
        self.arrays = arrays
        self.dtype = np.result_type(*(array.dtype for array in arrays))
        self._starts = np.cumsum([0, *map(len, arrays)])  # (K + 1,)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, key: slice | npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        if not isinstance(key, slice):
            return self._gather(key)
        start, stop, step = key.indices(len(self))
        if step != 1:
            return self._gather(np.arange(start, stop, step))
        begin = int(np.searchsorted(self._starts, start, side="right")) - 1
        end = int(np.searchsorted(self._starts, stop))
        overlapping = zip(self._starts[begin:end].tolist(), self.arrays[begin:end], strict=True)
        parts = [array[max(0, start - first) : max(0, stop - first)] for first, array in overlapping]
        return np.concatenate([np.empty(0, self.dtype), *parts])

    def _gather(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """The tokens at positions of any shape."""
        found = np.empty(positions.shape, self.dtype)
        numbers = np.searchsorted(self._starts, positions, side="right") - 1
        for number in np.unique(numbers):
            chosen = numbers == number
            found[chosen] = self.arrays[number][positions[chosen] - self._starts[number]]
        return found
