"""Weights in several files, by the index beside them; it knows neither what they are of nor how each is read."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from minigpt.errors import CheckpointError
from minigpt.storage.files import read_json
from minigpt.storage.huggingface import TensorSource


class ShardedTensors:
    """The tensors of all the files that an index names, each from its own.

    Raises: CheckpointError where the index is damaged or leads elsewhere, or a file has not the tensors it should have.
    """

    def __init__(self, index: Path, open_shard: Callable[[Path], TensorSource]) -> None:
        self.path = index
        places = _places_in(index)
        self._shards: dict[str, TensorSource] = {}
        try:
            for name in files_named_in(index):
                self._shards[name] = open_shard(index.parent / name)
            self._sources = self._find(places)
        except BaseException:
            self.close()
            raise

    def _find(self, places: dict[str, str]) -> dict[str, TensorSource]:
        held: dict[str, str] = {}
        for shard, source in self._shards.items():
            for name in source.shapes:
                if name in held:
                    raise CheckpointError(f"{name!r} is in {held[name]} and in {shard}, expected once: {self.path}")
                held[name] = shard
        for name, shard in places.items():
            if held.get(name) != shard:
                raise CheckpointError(
                    f"{self._shards[shard].path} has no tensor {name!r}, which {self.path} says it has"
                )
        if extra := held.keys() - places.keys():
            name = min(extra)
            raise CheckpointError(
                f"{self._shards[held[name]].path} has a tensor {name!r} that {self.path} does not name"
            )
        return {name: self._shards[shard] for name, shard in held.items()}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor's name and shape."""
        return {name: shape for source in self._shards.values() for name, shape in source.shapes.items()}

    def read(self, name: str) -> Tensor:
        """One tensor, in memory of its own.

        Raises: as its file does; KeyError for an unknown name.
        """
        return self._sources[name].read(name)

    def borrow(self, name: str) -> Tensor:
        """One tensor, in memory that the next borrowing may overwrite.

        Raises: as `read`.
        """
        return self._sources[name].borrow(name)

    def map(self, name: str, dtype: torch.dtype) -> Tensor | None:
        """One tensor where it lies in its file, or None.

        Raises: as `read`.
        """
        return self._sources[name].map(name, dtype)

    def close(self) -> None:
        """Lets go of the files."""
        for source in self._shards.values():
            source.close()


def files_named_in(index: Path) -> list[str]:
    """The files that an index names, all of them beside it; a link there, as in the hub's cache, may lead anywhere.

    Raises: CheckpointError where the index is damaged, or leads out of its folder.
    """
    names = sorted(set(_places_in(index).values()))
    for name in names:
        if name in ("", ".", "..") or "\\" in name or "\0" in name or Path(name).name != name:
            raise CheckpointError(f"{index} names {name!r}, which must be a file beside it")
    return names


def _places_in(index: Path) -> dict[str, str]:
    """The file of each tensor."""
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise CheckpointError(f"{index} must have a weight_map of names to files; copy or download it again")
    return places
