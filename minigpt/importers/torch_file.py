"""Opens files of torch.save, in its zip format and its old one, without torch.load and without running any code.

torch.load(weights_only=True) runs no code either, but a file of 244 bytes makes it allocate gigabytes, and one of 1 kB
keeps it busy forever.
Source: torch/serialization.py, `_save`, `_legacy_save`, `_legacy_load`.
"""

import math
import zipfile
from collections.abc import Iterable, Mapping
from functools import cache, partial
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from minigpt.bounded_reading import open_regular
from minigpt.errors import CheckpointError
from minigpt.importers.plain_pickle import (
    MAX_PICKLE,
    DamagedPickleError,
    OtherObjectError,
    WouldRunError,
    is_plain,
    read_pickle,
)
from minigpt.importers.torch_pickle import Storage, View, functions, storage_of
from minigpt.storage.byte_file import ByteFile
from minigpt.storage.files import lfs_pointer_error
from minigpt.storage.tensors import LazyTensor, TensorSource

_ZIP = b"PK\x03\x04"
_PICKLES = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_OLDEST_PICKLES = (b"c", b"(")  # of protocols 0 and 1; the first opcode is a global or a mark
_SUFFIXES = (".bin", ".pt", ".pth")
_MAGIC_NUMBER = 0x1950A86A20F9469CFC6C  # the first pickle of the old format
_ENCRYPTED = 1  # the bit of a member's flags
_LOCAL_HEADER = 30  # bytes of a member's header in a zip, before its name and its extra field


class TensorPlace(NamedTuple):
    """A tensor as a file describes it: where its values are, and how they are laid out.

    `start` counts bytes from the start of the file, `strides` values; `dtype` is None for one that is sparse or
    quantized, `start` is None for one without values.
    """

    dtype: torch.dtype | None
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int | None

    def read(self, file: ByteFile, reuse_buffer: bool) -> Tensor:
        """The tensor, one that `torch_tensors` accepts."""
        assert self.dtype is not None
        assert self.start is not None
        last = sum((length - 1) * step for length, step in zip(self.shape, self.strides, strict=True))
        size = (last + 1) * self.dtype.itemsize if math.prod(self.shape) else 0
        content = file.read(self.start, size, reuse_buffer=reuse_buffer)
        return content.view(self.dtype).as_strided(self.shape, self.strides)


def is_torch_file(path: Path, start: bytes) -> bool:
    """Whether a file that starts with these bytes may be from torch.save."""
    return start.startswith((_ZIP, *_PICKLES)) or (path.suffix in _SUFFIXES and start.startswith(_OLDEST_PICKLES))


def open_torch(path: Path) -> Any:
    """The object that torch.save wrote: plain values, and a TensorPlace for each tensor.

    Raises: CheckpointError if the file is missing, damaged, compressed, or would run code.
    """
    with ByteFile(path) as file:
        start = file.take(8)
        if start.startswith(b"version "):
            raise lfs_pointer_error(path)
        if not is_torch_file(path, start):
            raise CheckpointError(f"{path} is not a file of torch.save; copy or download it again")
        try:
            return _open_zip(file) if start.startswith(_ZIP) else _open_old(file, start)
        except WouldRunError as error:
            raise CheckpointError(
                f"{path} would run {error} when opened, which weights do not need and an attack may, so it was not"
                " opened; get the model as safetensors"
            ) from error
        except OtherObjectError as error:
            raise CheckpointError(
                f"{path} holds objects that are not weights ({error}); get the model as safetensors"
            ) from error
        except (DamagedPickleError, zipfile.BadZipFile, NotImplementedError, OSError, EOFError, ValueError) as error:
            if isinstance(error, CheckpointError):  # is an OSError too, and already says what to do
                raise
            raise CheckpointError(
                f"{path} is truncated, damaged or not a file of weights ({' '.join(str(error)[:160].split())}); copy or"
                " download it again"
            ) from error


def _open_zip(file: ByteFile) -> Any:
    """The object in the zip format: a pickle in the member data.pkl, and a member for each storage."""
    with open_regular(file.path) as stream, zipfile.ZipFile(stream) as archive:
        members = {member.filename: member for member in archive.infolist()}
        _check_members(file, members.values())
        found = [name for name in members if name.rpartition("/")[2] == "data.pkl"]
        if len(found) != 1:
            raise ValueError("it has no data.pkl, or several")
        prefix = found[0].removesuffix("data.pkl")
        if f"{prefix}constants.pkl" in members:
            raise WouldRunError("TorchScript")
        if members[found[0]].file_size > MAX_PICKLE:
            raise ValueError(f"its data.pkl has {members[found[0]].file_size:,} bytes")
        byteorder = members.get(f"{prefix}byteorder")
        if byteorder and archive.open(byteorder).read(6) != b"little":
            raise ValueError("it is for big-endian machines")
        content = read_pickle(BytesIO(archive.read(found[0])), functions(), storage_of)
    return _place(content, lambda storage: _start_of(file, members.get(f"{prefix}data/{storage.key}"), storage))


def _check_members(file: ByteFile, members: Iterable[zipfile.ZipInfo]) -> None:
    """Checks that a zip is neither encrypted nor compressed and claims no more bytes than the file has."""
    if encrypted := next((member for member in members if member.flag_bits & _ENCRYPTED), None):
        raise CheckpointError(
            f"{file.path} is an encrypted zip ({encrypted.filename!r} needs a password), which torch.save never "
            "writes; give the file without encryption"
        )
    compressed = next((member for member in members if member.compress_type != zipfile.ZIP_STORED), None)
    if compressed:
        raise CheckpointError(
            f"{file.path} is a compressed zip ({compressed.filename!r} would unpack to {compressed.file_size:,} bytes),"
            " which torch.save never writes; load and save it with torch, or unpack it if it is an archive of a model's"
            " files"
        )
    if (claimed := sum(member.file_size for member in members)) > file.size:
        raise CheckpointError(
            f"{file.path} claims to hold {claimed:,} bytes but has {file.size:,}; copy or download it again"
        )


def _start_of(file: ByteFile, member: zipfile.ZipInfo | None, storage: Storage) -> int:
    """The byte at which a storage in a member of the zip begins."""
    if member is None or member.file_size < storage.size * storage.dtype.itemsize:
        raise ValueError(f"it does not hold all of data/{storage.key}")
    header = bytes(file.read(member.header_offset, _LOCAL_HEADER).tolist())
    start = member.header_offset + _LOCAL_HEADER
    start += int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
    file.check_range(start, member.file_size)
    return start


def _open_old(file: ByteFile, start: bytes) -> Any:
    """The object in the old format: five pickles, the last of which lists the storages that follow it in order.

    `start` is what was read of the file already.
    """
    stream = BytesIO(start + file.take(MAX_PICKLE))
    if (first := read_pickle(stream, functions())) != _MAGIC_NUMBER:
        raise ValueError(f"its first pickle is a {type(first).__name__}")
    _, system = (read_pickle(stream, {}) for _ in range(2))
    if isinstance(system, dict) and system.get("little_endian") is False:
        raise ValueError("it is for big-endian machines")
    storages: dict[str, Storage] = {}

    def remember(identity: Any) -> Storage:
        storage = storage_of(identity)
        if storages.setdefault(storage.key, storage) != storage:
            raise ValueError(f"it describes the storage {storage.key} twice")
        return storage

    content, keys = read_pickle(stream, functions(), remember), read_pickle(stream, {})
    if not isinstance(keys, list) or not all(map(is_plain, keys)) or set(keys) != storages.keys():
        raise ValueError("its list of storages is not that of its tensors")
    starts, end = {}, stream.tell()
    for key in keys:
        starts[key] = end + 8  # after the number of values
        end = starts[key] + storages[key].size * storages[key].dtype.itemsize
        file.check_range(starts[key], end - starts[key])
    return _place(content, lambda storage: starts[storage.key])


def _place(content: Any, start_of: Any) -> Any:
    """The content with each of its tensors' places in the file; lists are looked into only one level deep."""
    known: dict[str, int] = {}

    def placed(value: Any) -> Any:
        if not isinstance(value, View):
            return value
        if value.storage is None:
            return TensorPlace(None, value.shape, value.strides, None)
        if value.storage.key not in known:
            known[value.storage.key] = start_of(value.storage)
        return _checked(value, value.storage, known[value.storage.key])

    if not isinstance(content, dict):
        return placed(content)
    return {
        key: {name: placed(each) for name, each in value.items()} if isinstance(value, dict) else placed(value)
        for key, value in content.items()
    }


def _checked(view: View, storage: Storage, start: int) -> TensorPlace:
    dtype = view.dtype or storage.dtype
    last = sum((length - 1) * step for length, step in zip(view.shape, view.strides, strict=True))
    used = view.offset + last + 1 if math.prod(view.shape) else 0
    if used * dtype.itemsize > storage.size * storage.dtype.itemsize:
        raise ValueError(f"a tensor of shape {view.shape} lies outside of its storage {storage.key}")
    return TensorPlace(dtype, view.shape, view.strides, start + view.offset * dtype.itemsize)


@cache
def _is_real(dtype: torch.dtype) -> bool:
    """Whether values of this type convert to float32; quantized ones and those of less than a byte do not."""
    if dtype.is_complex:
        return False
    try:
        torch.zeros(dtype.itemsize, dtype=torch.uint8).view(dtype).float()
    except NotImplementedError:
        return False
    return True


def torch_tensors(path: Path, tensors: Mapping[str, Any]) -> TensorSource:
    """The named tensors of a file that `open_torch` opened.

    Raises: CheckpointError if one is not a dense tensor of real numbers, or they claim more than the file holds.
    """
    claimed = 0
    for name, tensor in tensors.items():
        if not isinstance(name, str) or not isinstance(tensor, TensorPlace):
            raise CheckpointError(f"{path} holds a {type(tensor).__name__} named {name!r}, expected only tensors")
        if tensor.dtype is None or not _is_real(tensor.dtype):
            raise CheckpointError(f"{name!r} in {path} is sparse, quantized or complex, expected dense real values")
        claimed += math.prod(tensor.shape) * tensor.dtype.itemsize
    file = ByteFile(path)
    if claimed > 2 * file.size:  # twice, because a tied head may share the embedding's bytes
        file.close()
        raise CheckpointError(
            f"{path} claims to hold {claimed:,} bytes of tensors but has {file.size:,}; copy or download it again"
        )
    found = {name: LazyTensor(tensor.shape, partial(tensor.read, file)) for name, tensor in tensors.items()}
    return TensorSource(path, found, file.close)
