"""Reads weights that are split into several files, listed in an index file."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from minigpt.errors import CheckpointError
from minigpt.storage.files import read_json
from minigpt.storage.huggingface import TensorSource


class ShardedTensors:
    """The tensors of all files that an index names.

    Raises: CheckpointError if the index is damaged or names files elsewhere, or a file's tensors differ from the index.
    """

    def __init__(self, index: Path, open_shard: Callable[[Path], TensorSource]) -> None:
        self.path = index
        file_of = _read_index(index)
        self._shards: dict[str, TensorSource] = {}
        try:
            for name in files_named_in(index):
                self._shards[name] = open_shard(index.parent / name)
            self._sources = self._match(file_of)
        except BaseException:
            self.close()
            raise

    def _match(self, file_of: dict[str, str]) -> dict[str, TensorSource]:
        found: dict[str, str] = {}
        for shard, source in self._shards.items():
            for name in source.shapes:
                if name in found:
                    raise CheckpointError(
                        f"{name!r} is in both {found[name]} and {shard}, expected in one file of {self.path}"
                    )
                found[name] = shard
        for name, shard in file_of.items():
            if found.get(name) != shard:
                raise CheckpointError(f"{self._shards[shard].path} has no tensor {name!r}, which {self.path} lists")
        if extra := found.keys() - file_of.keys():
            name = min(extra)
            raise CheckpointError(
                f"{self._shards[found[name]].path} has a tensor {name!r} that {self.path} does not list"
            )
        return {name: self._shards[shard] for name, shard in found.items()}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor's name and shape."""
        return {name: shape for source in self._shards.values() for name, shape in source.shapes.items()}

    def read(self, name: str, *, reuse_buffer: bool = False) -> Tensor:
        """One tensor; with `reuse_buffer` in memory that the next such read may overwrite.

        Raises: as its file does; KeyError for an unknown name.
        """
        return self._sources[name].read(name, reuse_buffer=reuse_buffer)

    def map(self, name: str, dtype: torch.dtype) -> Tensor | None:
        """One tensor memory-mapped from its file, or None.

        Raises: as `read`.
        """
        return self._sources[name].map(name, dtype)

    def close(self) -> None:
        """Closes the files."""
        for source in self._shards.values():
            source.close()


def files_named_in(index: Path) -> list[str]:
    """The names of the files in an index, all in its folder; there, links may lead elsewhere, as in the hub's cache.

    Raises: CheckpointError if the index is damaged, or names a file outside its folder.
    """
    names = sorted(set(_read_index(index).values()))
    for name in names:
        if name in ("", ".", "..") or "\\" in name or not name.isprintable() or Path(name).name != name:
            raise CheckpointError(f"{index} names {name!r}, which must be a file in the same folder")
    return names


def _read_index(index: Path) -> dict[str, str]:
    """The file that each tensor is in."""
    file_of = read_json(index).get("weight_map")
    if not isinstance(file_of, dict) or not all(isinstance(name, str) for name in file_of.values()):
        raise CheckpointError(f"{index} must have a weight_map of tensor names to files; copy or download it again")
    return file_of
