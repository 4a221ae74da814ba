"""What torch.save wrote, old form and new, opened without running anything that stands in it.

It knows no model: which of its tensors are whose, the callers know.
"""

import contextlib
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minigpt.errors import CheckpointError
from minigpt.importers.byte_file import ByteFile

_ZIP = b"PK\x03\x04"
_PICKLES = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


def is_torch_file(start: bytes) -> bool:
    """Whether a file that begins so may be one of torch.save's."""
    return start.startswith((_ZIP, *_PICKLES))


def open_torch(path: Path) -> Any:
    """What torch.save wrote to a file: of the new form (a zip) its tensors are places in the file, and not read yet.

    The old form has no places to go to, so its tensors are read.
    Raises: CheckpointError where it is missing, damaged, packed, or asks for anything to be run.
    """
    with ByteFile(path) as file:
        start = file.take(8)
        if start.startswith(b"version "):
            raise CheckpointError(f"{path} is a Git LFS pointer, not the tensors; run `git lfs pull` beside it")
        if not is_torch_file(start):
            raise CheckpointError(f"{path} is no file of torch.save's; copy or download it again")
        zipped = start.startswith(_ZIP)
        if zipped:
            _check_directory(path, file.size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on storages and protocols, which are torch's own affair
        try:
            if not zipped:
                return torch.load(path, map_location="cpu", weights_only=True)
            with _noting_places():
                return torch.load(path, map_location="meta", weights_only=True)
        except Exception as error:  # whatever a damaged pickle makes torch trip over
            raise CheckpointError(_refusal(path, error)) from error


def _noting_places() -> contextlib.AbstractContextManager[object]:
    """In which torch notes where in the file each tensor lies, as newer versions do by themselves."""
    if hasattr(torch.serialization, "_is_meta_location"):
        return contextlib.nullcontext()
    from torch._subclasses.fake_tensor import FakeTensorMode  # entering it takes a second and 70 MB

    return FakeTensorMode()


def _check_directory(path: Path, size: int) -> None:
    """Makes sure that a zip holds no more than the file: nothing packed, nothing twice."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise CheckpointError(f"{path} is truncated or damaged ({error}); copy or download it again") from error
    packed = next((member for member in members if member.compress_type != zipfile.ZIP_STORED), None)
    if packed:
        raise CheckpointError(
            f"{path} is a packed zip ({packed.filename!r} would unpack to {packed.file_size:,} bytes), which torch.save"
            " never writes; load and save it with torch, or unpack it if it is an archive of a model's files"
        )
    if (claimed := sum(member.file_size for member in members)) > size:
        raise CheckpointError(f"{path} claims to hold {claimed:,} bytes in {size:,}; copy or download it again")


def _refusal(path: Path, error: Exception) -> str:
    text = " ".join(str(error).split())
    wanted = re.search(r"GLOBAL ([\w.]+)|Unsupported (?:global|class) ([\w.]+)|TorchScript", text)
    if wanted:
        name = wanted[1] or wanted[2] or "TorchScript"
        return (
            f"{path} asks for {name} when it is opened, which is more than weights and may be an attack, so it was not"
            " opened; get the model as safetensors"
        )
    if isinstance(error, MemoryError) or "allocate memory" in text:
        return f"{path} asks for more memory than there is; copy or download it again"
    reason = text.partition(". ")[0][:160] or type(error).__name__
    return f"{path} is truncated, damaged or no file of weights ({reason}); copy or download it again"


class TorchTensors:
    """Named tensors of a file that `open_torch` opened.

    Raises: CheckpointError where one is no plain tensor, or lies outside the file.
    """

    def __init__(self, path: Path, tensors: Mapping[str, Tensor]) -> None:
        self.path = path
        self._tensors = dict(tensors)
        for name, tensor in tensors.items():
            if not isinstance(name, str) or not isinstance(tensor, Tensor):
                raise CheckpointError(f"{path} holds a {type(tensor).__name__} named {name!r}, expected tensors alone")
            if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_complex():
                raise CheckpointError(f"{name!r} in {path} is sparse, quantized or complex, expected plain numbers")
        self._file = ByteFile(path)
        try:
            self._places = {name: self._place(name) for name, tensor in tensors.items() if tensor.is_meta}
            held = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
            if held > 2 * self._file.size:  # twice: a tied head may be the embedding once more
                raise CheckpointError(f"{path} claims to hold {held:,} bytes of tensors in {self._file.size:,}")
        except BaseException:
            self._file.close()
            raise

    def _place(self, name: str) -> tuple[int, int]:
        """Where in the file a tensor's numbers begin, and how many bytes they take."""
        tensor = self._tensors[name]
        storage = tensor.untyped_storage()
        start: int | None = getattr(storage, "_checkpoint_offset", None)
        if start is None:
            raise CheckpointError(f"{name!r} in {self.path} has no numbers of its own; load and save it with torch")
        last = sum((length - 1) * step for length, step in zip(tensor.shape, tensor.stride(), strict=True))
        size = (last + 1) * tensor.element_size() if tensor.numel() else 0
        start += int(tensor.storage_offset()) * tensor.element_size()
        self._file.check(start, size)
        return start, size

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor's name and shape."""
        return {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}

    def read(self, name: str) -> Tensor:
        """One tensor, in memory of its own, or of the file where it had to be read whole.

        Raises: CheckpointError where the file has shrunk or cannot be read; KeyError for an unknown name.
        """
        if name not in self._places:
            return self._tensors[name]
        return self._shaped(name, self._file.read(*self._places[name]))

    def borrow(self, name: str) -> Tensor:
        """One tensor, in memory that the next borrowing overwrites; or let go of, where it had to be read whole.

        Raises: as `read`.
        """
        if name not in self._places:
            return self._tensors.pop(name)
        return self._shaped(name, self._file.borrow(*self._places[name]))

    def _shaped(self, name: str, data: Tensor) -> Tensor:
        tensor = self._tensors[name]
        return data.view(tensor.dtype).as_strided(tensor.shape, tensor.stride())

    def map(self, name: str, dtype: torch.dtype) -> None:
        """Never where it lies: these files are for importing."""

    def close(self) -> None:
        """Lets go of the file and of what was read."""
        self._file.close()
        self._tensors.clear()
