"""Another format's tensors under Hugging Face's names and in its orientation; which name is which, it is told."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from minigpt.errors import CheckpointError


class Reader(Protocol):
    """What a format's file gives: tensors by the file's own names."""

    path: Path

    def read(self, name: str) -> Tensor: ...

    def borrow(self, name: str) -> Tensor: ...

    def close(self) -> None: ...


class Place(NamedTuple):
    """Where a tensor is: its name and shape in the file, and whether Hugging Face keeps it turned."""

    theirs: str
    shape: tuple[int, ...]
    turned: bool = False


class RenamedTensors:
    """A `TensorSource` over a file whose tensors have other names.

    A shape may differ from the file's by ones in front, as OpenAI's convolutions of width 1 have them.
    """

    def __init__(self, file: Reader, places: Mapping[str, Place]) -> None:
        self.path = file.path
        self._file = file
        self._places = places

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor's name and shape."""
        return {name: place.shape[::-1] if place.turned else place.shape for name, place in self._places.items()}

    def read(self, name: str) -> Tensor:
        """One tensor, in memory of its own.

        Raises: CheckpointError where its bytes are damaged or no longer there; KeyError for an unknown name.
        """
        return self._view(self._file.read(self._places[name].theirs), self._places[name])

    def borrow(self, name: str) -> Tensor:
        """One tensor, in memory that the next borrowing may overwrite.

        Raises: as `read`.
        """
        return self._view(self._file.borrow(self._places[name].theirs), self._places[name])

    def _view(self, tensor: Tensor, place: Place) -> Tensor:
        tensor = tensor.reshape(place.shape)
        return tensor.t() if place.turned else tensor

    def map(self, name: str, dtype: torch.dtype) -> None:
        """Never where it lies: these files are converted once, not run from."""

    def close(self) -> None:
        """Lets go of the file."""
        self._file.close()


def expect_shape(path: Path, place: Place, shape: tuple[int, ...]) -> None:
    """Makes sure that a tensor in a file has the shape that the model needs.

    Raises: CheckpointError where it has another.
    """
    leading = len(shape) - len(place.shape)
    if leading < 0 or shape[leading:] != place.shape or any(size != 1 for size in shape[:leading]):
        raise CheckpointError(f"{place.theirs!r} in {path} is of shape {shape}, expected {place.shape}")
