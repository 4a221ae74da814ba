"""The prefix cache: keys and values of the beginnings of earlier prompts, up to a number of bytes."""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

from torch import Tensor


class PrefixCache:
    """Keeps the keys and values of blocks of `block` tokens, each under a hash of all tokens up to its end.

    The keys and values of a position depend on all tokens up to it, so that two prompts share a block only if they are
    equal up to its end. Beyond `max_bytes` the least recently used block is dropped.
    """

    def __init__(self, block: int, max_bytes: int) -> None:
        self.block, self.max_bytes = block, max_bytes
        self.n_bytes = 0
        self._blocks: OrderedDict[bytes, Tensor] = OrderedDict()  # least recently used first

    def find(self, ids: Sequence[int]) -> list[Tensor]:
        """The blocks of the longest known beginning of these tokens, in order."""
        keys, found = [], []
        for key in self._keys(ids):
            if key not in self._blocks:
                break
            keys.append(key)
            found.append(self._blocks[key])
        for key in reversed(keys):  # the first block is needed by all others, so it is dropped last
            self._blocks.move_to_end(key)
        return found

    def add(self, ids: Sequence[int], save: Callable[[int, int], Tensor]) -> None:
        """Keeps the blocks of these tokens; `save(start, end)` copies one that is missing."""
        if self.max_bytes == 0:
            return
        for number, key in reversed(list(enumerate(self._keys(ids)))):
            if key not in self._blocks:
                self._blocks[key] = save(number * self.block, (number + 1) * self.block)
                self.n_bytes += self._blocks[key].nbytes
        while self.n_bytes > self.max_bytes:
            self.n_bytes -= self._blocks.popitem(last=False)[1].nbytes

    def _keys(self, ids: Sequence[int]) -> Iterator[bytes]:
        """The key of each whole block."""
        digest = hashlib.sha256()
        for end in range(self.block, len(ids) + 1, self.block):
            digest.update(array("q", ids[end - self.block : end]).tobytes())
            yield digest.digest()
