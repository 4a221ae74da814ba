"""Tensor sources that rename, transpose or replace the tensors of another source."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from minigpt.errors import CheckpointError
from minigpt.storage.huggingface import TensorSource


class TensorReader(Protocol):
    """Reads the tensors of one format by their names in the file."""

    path: Path

    def read(self, name: str, *, reuse_buffer: bool = False) -> Tensor: ...

    def close(self) -> None: ...


class FileTensor(NamedTuple):
    """A tensor's name and shape in the file, and whether that is the transpose of Hugging Face's."""

    name: str
    shape: tuple[int, ...]
    transposed: bool = False


class RenamedTensors:
    """The tensors of a file under Hugging Face's names and in its orientation.

    A file's shape may have additional leading dimensions of 1, as OpenAI's convolutions of width 1 have.
    """

    def __init__(self, file: TensorReader, tensors: Mapping[str, FileTensor]) -> None:
        self.path = file.path
        self._file = file
        self._tensors = tensors

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor's name and shape."""
        return {name: found.shape[::-1] if found.transposed else found.shape for name, found in self._tensors.items()}

    def read(self, name: str, *, reuse_buffer: bool = False) -> Tensor:
        """One tensor; with `reuse_buffer` in memory that the next such read may overwrite.

        Raises: CheckpointError if it is damaged or cannot be read; KeyError for an unknown name.
        """
        found = self._tensors[name]
        tensor = self._file.read(found.name, reuse_buffer=reuse_buffer).reshape(found.shape)
        return tensor.t() if found.transposed else tensor

    def map(self, name: str, dtype: torch.dtype) -> None:
        """Always None: these formats are converted, not memory-mapped."""

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class WrappedTensors:
    """Another source's tensors, unchanged; subclasses change some of them."""

    def __init__(self, source: TensorSource) -> None:
        self.path = source.path
        self._source = source

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor's name and shape."""
        return self._source.shapes

    def read(self, name: str, *, reuse_buffer: bool = False) -> Tensor:
        """One tensor; with `reuse_buffer` in memory that the next such read may overwrite.

        Raises: as the source does.
        """
        return self._source.read(name, reuse_buffer=reuse_buffer)

    def map(self, name: str, dtype: torch.dtype) -> Tensor | None:
        """One tensor memory-mapped from the source's file, or None.

        Raises: as `read`.
        """
        return self._source.map(name, dtype)

    def close(self) -> None:
        """Closes the source."""
        self._source.close()


class ReplacedTensors(WrappedTensors):
    """Another source's tensors, some of them replaced, added or removed."""

    def __init__(self, source: TensorSource, replaced: Mapping[str, Tensor], removed: Collection[str] = ()) -> None:
        super().__init__(source)
        self._replaced = replaced
        self._removed = removed

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor's name and shape."""
        shapes = super().shapes | {name: tuple(tensor.shape) for name, tensor in self._replaced.items()}
        return {name: shape for name, shape in shapes.items() if name not in self._removed}

    def read(self, name: str, *, reuse_buffer: bool = False) -> Tensor:
        """One tensor; with `reuse_buffer` in memory that the next such read may overwrite.

        Raises: as the source does.
        """
        if name not in self._replaced:
            return super().read(name, reuse_buffer=reuse_buffer)
        tensor = self._replaced[name]
        return tensor if reuse_buffer else tensor.clone(memory_format=torch.contiguous_format)

    def map(self, name: str, dtype: torch.dtype) -> Tensor | None:
        """One tensor memory-mapped from the source's file, or None.

        Raises: as `read`.
        """
        return None if name in self._replaced else super().map(name, dtype)


def check_shape(path: Path, expected: FileTensor, shape: tuple[int, ...]) -> None:
    """Checks that a tensor in a file has the expected shape, apart from leading dimensions of 1.

    Raises: CheckpointError if it has another shape.
    """
    leading = len(shape) - len(expected.shape)
    if leading < 0 or shape[leading:] != expected.shape or any(size != 1 for size in shape[:leading]):
        raise CheckpointError(f"{expected.name!r} in {path} has shape {shape}, expected {expected.shape}")
