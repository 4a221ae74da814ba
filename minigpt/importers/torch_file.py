"""Opens files of torch.save, in its zip format and its old one, without running any code in them."""

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
from minigpt.storage.byte_file import ByteFile
from minigpt.storage.files import lfs_pointer_error

_ZIP = b"PK\x03\x04"
_PICKLES = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


def is_torch_file(start: bytes) -> bool:
    """Whether a file that starts with these bytes may be from torch.save."""
    return start.startswith((_ZIP, *_PICKLES))


def open_torch(path: Path) -> Any:
    """The object that torch.save wrote. In the zip format its tensors are on the meta device and are not read yet.

    The old format does not allow reading single tensors, so there they are read.
    Raises: CheckpointError if the file is missing, damaged, compressed, or would run code.
    """
    with ByteFile(path) as file:
        start = file.take(8)
        if start.startswith(b"version "):
            raise lfs_pointer_error(path)
        if not is_torch_file(start):
            raise CheckpointError(f"{path} is not a file of torch.save; copy or download it again")
        zipped = start.startswith(_ZIP)
        if zipped:
            _check_directory(path, file.size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about torch's own storage classes and pickle protocols
        try:
            if not zipped:
                return torch.load(path, map_location="cpu", weights_only=True)
            with _recording_offsets():
                return torch.load(path, map_location="meta", weights_only=True)
        except Exception as error:  # damaged pickles make torch raise many kinds
            raise CheckpointError(_refusal(path, error)) from error


def _recording_offsets() -> contextlib.AbstractContextManager[object]:
    """A context in which torch.load records each tensor's offset in the file; newer versions always do."""
    if hasattr(torch.serialization, "_is_meta_location"):
        return contextlib.nullcontext()
    from torch._subclasses.fake_tensor import FakeTensorMode  # entering it takes a second and 70 MB

    return FakeTensorMode()


def _check_directory(path: Path, size: int) -> None:
    """Checks that a zip is not compressed and claims no more bytes than the file has."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise CheckpointError(f"{path} is truncated or damaged ({error}); copy or download it again") from error
    compressed = next((member for member in members if member.compress_type != zipfile.ZIP_STORED), None)
    if compressed:
        raise CheckpointError(
            f"{path} is a compressed zip ({compressed.filename!r} would unpack to {compressed.file_size:,} bytes),"
            " which torch.save never writes; load and save it with torch, or unpack it if it is an archive of a model's"
            " files"
        )
    if (claimed := sum(member.file_size for member in members)) > size:
        raise CheckpointError(f"{path} claims to hold {claimed:,} bytes but has {size:,}; copy or download it again")


def _refusal(path: Path, error: Exception) -> str:
    text = " ".join(str(error).split())
    wanted = re.search(r"GLOBAL ([\w.]+)|Unsupported (?:global|class) ([\w.]+)|TorchScript", text)
    if wanted:
        name = wanted[1] or wanted[2] or "TorchScript"
        return (
            f"{path} would run {name} when opened, which weights do not need and an attack may, so it was not opened;"
            " get the model as safetensors"
        )
    if isinstance(error, MemoryError) or "allocate memory" in text:
        return f"{path} needs more memory than is available; copy or download it again"
    reason = text.partition(". ")[0][:160] or type(error).__name__
    return f"{path} is truncated, damaged or not a file of weights ({reason}); copy or download it again"


class TorchTensors:
    """The named tensors of a file that `open_torch` opened.

    Raises: CheckpointError if one is not a dense tensor of real numbers, or lies outside the file.
    """

    def __init__(self, path: Path, tensors: Mapping[str, Tensor]) -> None:
        self.path = path
        self._tensors = dict(tensors)
        for name, tensor in tensors.items():
            if not isinstance(name, str) or not isinstance(tensor, Tensor):
                raise CheckpointError(f"{path} holds a {type(tensor).__name__} named {name!r}, expected only tensors")
            if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_complex():
                raise CheckpointError(f"{name!r} in {path} is sparse, quantized or complex, expected dense real values")
        self._file = ByteFile(path)
        try:
            self._ranges = {name: self._range(name) for name, tensor in tensors.items() if tensor.is_meta}
            claimed = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
            if claimed > 2 * self._file.size:  # twice, because a tied head may share the embedding's bytes
                raise CheckpointError(
                    f"{path} claims to hold {claimed:,} bytes of tensors but has {self._file.size:,}; copy or download"
                    " it again"
                )
        except BaseException:
            self._file.close()
            raise

    def _range(self, name: str) -> tuple[int, int]:
        """The start and the size in bytes of a tensor's values in the file."""
        tensor = self._tensors[name]
        storage = tensor.untyped_storage()
        start: int | None = getattr(storage, "_checkpoint_offset", None)
        if start is None:
            raise CheckpointError(f"{name!r} in {self.path} has no values in the file; load and save it with torch")
        last = sum((length - 1) * step for length, step in zip(tensor.shape, tensor.stride(), strict=True))
        size = (last + 1) * tensor.element_size() if tensor.numel() else 0
        start += int(tensor.storage_offset()) * tensor.element_size()
        self._file.check_range(start, size)
        return start, size

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor's name and shape."""
        return {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}

    def read(self, name: str, *, reuse_buffer: bool = False) -> Tensor:
        """One tensor; with `reuse_buffer` in memory that the next such read may overwrite.

        In the old format, whose tensors are in memory already, such a read also removes the tensor, to free its memory.
        Raises: CheckpointError if the file was truncated or cannot be read; KeyError for an unknown name.
        """
        if name not in self._ranges:
            return self._tensors.pop(name) if reuse_buffer else self._tensors[name]
        tensor = self._tensors[name]
        content = self._file.read(*self._ranges[name], reuse_buffer=reuse_buffer)
        return content.view(tensor.dtype).as_strided(tensor.shape, tensor.stride())

    def map(self, name: str, dtype: torch.dtype) -> None:
        """Always None: these files are converted, not memory-mapped."""

    def close(self) -> None:
        """Closes the file and frees the tensors."""
        self._file.close()
        self._tensors.clear()
