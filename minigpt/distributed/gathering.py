"""Gathers sharded tensors while they are written, one at a time."""

from collections import deque
from collections.abc import Callable, Mapping

from torch import Tensor

from minigpt.storage.tensors import in_file_order


class Gathering:
    """The tensors of a file, which may be sharded over processes. `gather` makes a full tensor on the main process.

    The main process reads each when it writes it. All processes call `finish`, in which the others take part in that.
    """

    def __init__(self, tensors: Mapping[str, Tensor], gather: Callable[[Tensor], Tensor]) -> None:
        self.gather = gather
        self._left = deque(in_file_order(tensors).values())

    def read(self, tensor: Tensor) -> Tensor:
        """The full tensor, on the main process. It must be the next one in the order of the file."""
        expected = self._left.popleft()
        assert tensor.shape == expected.shape
        return self.gather(tensor)

    def finish(self) -> None:
        """Gathers what was not read: everything on the other processes, and the rest after a failed write."""
        while self._left:
            self.read(self._left[0])
