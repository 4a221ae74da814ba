"""Finds GPT-2's tensors in a file of another program."""

from collections.abc import Callable, Mapping
from pathlib import Path

from minigpt.config import GPTConfig
from minigpt.errors import CheckpointError
from minigpt.pretrained.imported_model import shape_in_file
from minigpt.storage.huggingface import StoredTensor, stored_tensors


def find_tensors(
    path: Path,
    config: GPTConfig,
    shapes: Mapping[str, tuple[int, ...]],
    name_of: Callable[[StoredTensor], str],
    *,
    transposes: bool = False,
) -> dict[str, str]:
    """The names that a model's tensors have in a file, by Hugging Face's.

    A shape in the file may have additional leading dimensions of 1, as OpenAI's convolutions of width 1 have;
    `transposes` if its matrices are the transposes of Hugging Face's where torch's are.
    Raises: CheckpointError for a tensor that is missing or of the wrong shape.
    """
    names = {}
    for stored in stored_tensors(config):
        name, expected = name_of(stored), shape_in_file(stored, transposes)
        if name not in shapes:
            raise CheckpointError(f"{path} has no tensor {name!r}, expected of shape {expected}")
        check_shape(path, name, shapes[name], expected)
        names[stored.stored_name] = name
    return names


def check_shape(path: Path, name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """Raises CheckpointError if a tensor in a file has another shape than expected, apart from leading ones."""
    leading = len(shape) - len(expected)
    if leading < 0 or shape[leading:] != expected or any(size != 1 for size in shape[:leading]):
        raise CheckpointError(f"{name!r} in {path} has shape {shape}, expected {expected}")
